"""Passes on IREE beside the same graph on ONNX Runtime, in turn: CPU time of one thread, the least of several.

python -m benchmarks.passes.iree_passes PACKAGE [--passes 20] [--past 512]; PACKAGE is of `export --engine iree`.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace

from reader_edge_runtime import EngineConfig
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.providers import open_target
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target

WIDTHS = (1, 8)
CAPACITIES = (512, 16384)  # rows of a slot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package")
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--past", type=int, default=400)
    arguments = parser.parse_args()
    package = ModelPackage.open(arguments.package)
    package.manifest = replace(package.manifest, max_context=max(CAPACITIES))  # which the tree comes nowhere near
    targets = {name: open_target(package, EngineConfig(provider=name, threads=1)) for name in ("cpu", "iree")}
    print(f"| nodes | rows of the cache | {' | '.join(f'{name}, CPU ms' for name in targets)} | ratio |")
    print("|---|---|---|---|---|")
    for width in WIDTHS:
        for capacity in CAPACITIES:
            times = least_times(targets, width, arguments.past, capacity, arguments.passes)
            shown = " | ".join(f"{1e3 * each:.2f}" for each in times.values())
            print(f"| {width} | {capacity} | {shown} | {times['iree'] / times['cpu']:.2f} |", flush=True)


def least_times(
    targets: Mapping[str, Target], width: int, past: int, capacity: int, num_passes: int
) -> dict[str, float]:
    """CPU seconds of a pass over a tree of so many nodes behind `past` tokens, by provider."""
    caches = {name: target.new_cache(1, capacity) for name, target in targets.items()}
    times = dict.fromkeys(targets, float("inf"))
    for cache in caches.values():
        cache.fill(0, past)
    for _ in range(num_passes):
        for name, target in targets.items():
            times[name] = min(times[name], seconds(target, caches[name], width))
    return times


def seconds(target: Target, cache: Cache, width: int) -> float:
    wanted = Pass(0, [DraftTree.chain(list(range(5, 5 + width)))], [list(range(width))])
    start = time.process_time()
    target.forward(cache, wanted)
    return time.process_time() - start


if __name__ == "__main__":
    main()

"""What a step of a head takes by its native kernel and by the operator's definition, in turn, beside its target's pass.

    python -m benchmarks.fusion.time_head HEAD PACKAGE [--rounds 200]

Between two steps the target makes a pass of four nodes, as it does between drafts: that takes the head's matrices out
of the processor's caches. Last come the same steps without passes.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from reader_edge_runtime import EngineConfig
from reader_edge_runtime.assembly import open_package, settled_target
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.head_file import HeadFile
from reader_edge_runtime.execution.providers import open_head
from reader_edge_runtime.target import Pass

_PAST, _NODES = 128, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("head", type=Path)
    parser.add_argument("package", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    package = open_package(options.package)
    target, _ = settled_target(package, EngineConfig(is_probed=False))
    head = HeadFile.read(options.head, package.manifest)
    cache = target.new_cache(1, _PAST + _NODES)
    cache.fill(0, _PAST)
    wanted = Pass(0, [DraftTree.chain([0] * _NODES)], [range(_NODES)], wants_hidden_states=True)
    said = target.forward(cache, wanted).hidden_states
    assert said is not None
    state, pending = said[0, :1].copy(), np.zeros(1, np.int64)
    ways = {"kernel": True, "graph": False}
    steps = {
        name: partial(open_head(head, package.manifest, is_native).guess, state, pending)
        for name, is_native in ways.items()
    }
    run_pass = partial(target.forward, cache, wanted)
    pass_s = timed({"pass": run_pass}, options.rounds // 10)["pass"]
    for where, before in (("behind a pass", run_pass), ("alone", lambda: None)):
        seconds = timed(steps, options.rounds, before)
        figures = [f"{name} {1e6 * each:.0f} us, {each / pass_s:.4f} of a pass" for name, each in seconds.items()]
        print(f"{where}: {'; '.join(figures)}; ratio {seconds['kernel'] / seconds['graph']:.2f}")


def timed(
    steps: Mapping[str, Callable[[], object]], rounds: int, before: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Median seconds of each step, in turn."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            before()
            began = time.perf_counter()
            step()
            found[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in found.items()}


if __name__ == "__main__":
    main()

"""Times of passes behind long contexts, as a table that sessions are replayed over.

    python -m benchmarks.agents.pass_table PACKAGE TABLE.json [--pasts 512,8192,16384] [--widths 1,4,8,16]
                                           [--rounds 5]

PACKAGE is a model of random weights as well: `scripts/random_model qwen2.5-3b 3b.gguf`, then `reader-edge export`.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.measuring.pass_cost import PassCost, bounded
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass

_PASSES = Path(__file__).with_name("passes")
MEASURED = [f"{size.upper()} shape={_PASSES / f'qwen2.5-{size}.json'}" for size in ("3b", "7b")]


def read_table(path: Path) -> PassCost:
    values = json.loads(path.read_text("utf-8"))
    seconds = np.stack([bounded(np.array(row), values["widths"]) for row in values["seconds"]])
    return PassCost(1, tuple(values["pasts"]), tuple(values["widths"]), seconds)


def measured(package: Path, pasts: list[int], widths: list[int], rounds: int, threads: int) -> list[list[float]]:
    """Seconds, each the median of as many passes in interleaved rounds, the second of a pair."""
    target = HostTarget.open(ModelPackage.open(package), threads, True)
    cache = target.new_cache(1, max(pasts) + max(widths))
    cache.fill(0, max(pasts))
    passes = [Pass(0, [DraftTree.chain(list(range(width)))], [range(width)]) for width in widths]
    times = np.zeros((rounds, len(pasts), len(widths)))
    for turn, p, w in np.ndindex(times.shape):
        cache.assume(0, pasts[p])
        for _ in range(2):
            start = time.perf_counter()
            target.forward(cache, passes[w])
            times[turn, p, w] = time.perf_counter() - start
    found: list[list[float]] = np.median(times, axis=0).tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--pasts", type=_numbers, default=[512, 8192, 16384])
    parser.add_argument("--widths", type=_numbers, default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    seconds = measured(given.package, given.pasts, given.widths, given.rounds, given.threads)
    table = {"pasts": given.pasts, "widths": given.widths, "seconds": np.round(seconds, 5).tolist()}
    given.table.write_text(json.dumps(table) + "\n", "utf-8")
    for past, row in zip(given.pasts, seconds, strict=True):
        print(
            f"behind {past}: "
            + ", ".join(f"{n} nodes {1e3 * s:.1f} ms" for n, s in zip(given.widths, row, strict=True))
        )


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()

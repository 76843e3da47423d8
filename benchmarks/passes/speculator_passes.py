"""What passes of a package and of its speculator take, in turn, and how many tokens a pass must gain for it to pay.

    python -m benchmarks.passes.speculator_passes PACKAGE [--past 512] [--rounds 15]

A speculator's step follows a pass of its target, as it does between drafts: that takes its matrices out of the caches
of the processor. Random weights do, since nothing is decoded.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.peers.tables import table
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.assembly import open_package, settled_target
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.speculator.speculator import TreeStep
from reader_edge_runtime.execution.providers import open_speculator
from reader_edge_runtime.target import Pass

WIDTHS = (1, 2, 4, 8, 16)
_TYPICAL = 8  # nodes of a pass with drafts
_STEPS = (1, 4)  # nodes of a draft's two typical passes of the speculator: catching up, and going on
_TOKENS_A_PASS = 2.0  # of chats and questions without a speculator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--past", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    package, config = open_package(options.package), EngineConfig(is_probed=False)
    target, _ = settled_target(package, config)
    speculator = open_speculator(package, target, config)
    cache, kept = (each.new_cache(1, options.past + 2 * max(WIDTHS)) for each in (target, speculator))
    cache.fill(0, options.past)
    kept.fill(0, options.past)

    def run_pass(width: int) -> float:
        wanted = Pass(0, [DraftTree.chain([0] * width)], [range(width)], wants_layer_states=True)
        return timed(lambda: target.forward(cache, wanted))

    def run_step(width: int) -> float:
        states = np.zeros((width, speculator.part.hidden_size), np.float32)
        step = TreeStep(DraftTree.chain([0] * (1 + width)), 1, states)
        return timed(lambda: speculator.step(kept, 0, [step]))

    passes, steps = ({width: list[float]() for width in WIDTHS} for _ in range(2))
    for number in range(1 + options.rounds):
        for width in WIDTHS:
            pass_s, step_s = run_pass(width), run_step(width)
            if number:
                passes[width].append(pass_s)
                steps[width].append(step_s)
    pass_ms, step_ms = ({n: 1e3 * statistics.median(each) for n, each in found.items()} for found in (passes, steps))
    rows = [[str(n), f"{pass_ms[n]:.2f}", f"{step_ms[n]:.3f}", f"{step_ms[n] / pass_ms[_TYPICAL]:.4f}"] for n in WIDTHS]
    print("\n".join(table(["nodes", "T(n), ms", "T_s(n), ms", f"of T({_TYPICAL})"], rows)))
    share = sum(step_ms[n] for n in _STEPS) / pass_ms[_TYPICAL]
    print(
        f"Two steps, of {_STEPS[0]} and {_STEPS[1]} nodes, take {share:.3f} of a pass of {_TYPICAL}: beside "
        f"{_TOKENS_A_PASS:g} tokens a pass they pay from {share * _TOKENS_A_PASS:.2f} more tokens on."
    )


def timed(call: Callable[[], object]) -> float:
    """Seconds of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

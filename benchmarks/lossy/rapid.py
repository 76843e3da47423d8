"""RAPID's formula (arXiv 2502.20330) beside our mixture of two views, on the same facts hidden in long prompts.

    python -m benchmarks.lossy.rapid PACKAGE [--shifts 1,5,10,20,50] [--tasks 300] [--context 256] [--weight 0.5]

RAPID moves the whole prompt's logits z towards the retrieved view by shift * (q - p), of both views' probabilities, for
tokens that have a tenth of q's best or more. Here these logits choose every token of an answer, as those of `views` do:
what the paper's draft model and its drawing add is speed, and errors of their own. The second table is paired with
`views` instead of the exact answers.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from reader_edge.lossy.long_tasks import long_tasks
from reader_edge.lossy.lossy_report import print_bench
from reader_edge.lossy.trial import Way, try_ways
from reader_edge.lossy.way_figures import way_figures
from reader_edge_runtime import Engine, EngineConfig
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.lossy.lossy_engine import LossyEngine
from reader_edge_runtime.lossy.views.views import Views
from reader_edge_runtime.lossy.views.views_target import ViewsTarget
from reader_edge_runtime.target import Target

LEAST_SHARE = 0.1  # of the retrieved view's best token, below which no token is moved


@dataclass(frozen=True, slots=True)
class Shifted(Views):
    """shift: the paper's eta, of 5 to 50; 0 is exact."""

    shift: float = field(default=10.0, kw_only=True)

    def target(self, target: Target) -> ViewsTarget:
        return ShiftedTarget(target, self.weight, self.shift)


class ShiftedTarget(ViewsTarget):
    def __init__(self, target: Target, weight: float, shift: float) -> None:
        super().__init__(target, weight)
        self._shift = np.float32(shift)

    def mix(self, whole: Float32Array, retrieved: Float32Array) -> Float32Array:
        p, q = probabilities(whole), probabilities(retrieved)
        is_moved = q >= LEAST_SHARE * q.max(axis=-1, keepdims=True)
        moved: Float32Array = whole + self._shift * (q - p) * is_moved
        return moved


def probabilities(logits: Float32Array) -> Float32Array:
    shares: Float32Array = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--shifts", default="1,5,10,20,50")
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--weight", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=0)
    asked = parser.parse_args()
    config = EngineConfig(threads=asked.threads, is_calibrated=False)
    strengths = {f"views:{asked.context}:{asked.weight:g}": Views(asked.context, asked.weight)}
    for shift in map(float, asked.shifts.split(",")):
        strengths[f"shift {shift:g}"] = Shifted(asked.context, shift=shift)
    ways = [Way("exact", Engine.load(asked.package, config))]
    ways += [Way(name, LossyEngine.load(asked.package, config, strength=each)) for name, each in strengths.items()]
    try_ways(ways, long_tasks(asked.tasks, asked.seed), 1, lambda done, total: None)
    for paired_with in ways[:2]:
        others = [way for way in ways if way is not paired_with]
        print_bench([way_figures(way, paired_with) for way in (paired_with, *others)])


if __name__ == "__main__":
    main()

"""A trained judge (AutoJudge, arXiv 2504.20039): a drafted token stays where it hardly can change the final answer."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from reader_edge_runtime.acceptance import Choices
from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers
from reader_edge_runtime.lossy.judge_figures import MOST_NATS, JudgeFigures
from reader_edge_runtime.lossy.judge_file import JudgeFile
from reader_edge_runtime.lossy.lossy_rule import LossyRule, Mismatch
from reader_edge_runtime.lossy.meter import Meter
from reader_edge_runtime.lossy.strength import Strength
from reader_edge_runtime.outside.config_checks import Range, check
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer


class Judge:
    """Judges tokens of one model by weights, float64 (1 + F,)."""

    def __init__(self, weights: Float64Array, figures: JudgeFigures) -> None:
        self.figures = figures
        self._weights = weights

    def risk(self, choices: Choices, node: int, found: Mismatch) -> float:
        """The chance that a drafted token changes the final answer."""
        score = float(self._weights[0] + self.figures.of(choices, node, found) @ self._weights[1:])
        return 1 / (1 + math.exp(-min(max(score, -500.0), 500.0)))


@dataclass(frozen=True, slots=True)
class Judged(Strength):
    """A drafted token stays where its judge gives it less than `threshold` to change the final answer; 0 is exact.

    file: of `reader-edge lossy train-judge`, for the engine's model. judge: what was read from it, by `opened`.
    """

    file: str
    threshold: Annotated[float, Range(0, 1)] = 0.1
    judge: Judge | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        return "judge"

    def opened(self, package: ModelPackage, tokenizer: Tokenizer) -> "Judged":
        """Raises JudgeError for a file that is no judge of this model."""
        weights = JudgeFile.read(Path(self.file), package.manifest).weights
        return replace(self, judge=Judge(weights, JudgeFigures(package.manifest, tokenizer)))

    def rule(self, ends: Collection[int], usual: OwnAnswers | None) -> "JudgedRule":
        assert self.judge is not None, "an engine opens it"
        return JudgedRule(self.judge, self.threshold, self.meter(usual), ends)

    def meter(self, usual: OwnAnswers | None) -> Meter:
        return Meter(self.name, {"judge": self.file, "threshold": self.threshold}, usual)


class JudgedRule(LossyRule):
    wants_log_sum_exp = True

    def __init__(self, judge: Judge, threshold: float, meter: Meter, ends: Collection[int]) -> None:
        super().__init__(meter, ends)
        self.wants_hidden_states = judge.figures.has_states
        self._judge, self._threshold = judge, threshold

    def most_nats(self, choices: Choices, node: int, rank: int) -> float:
        return MOST_NATS if self._threshold > 0 else 0.0

    def takes(self, choices: Choices, node: int, found: Mismatch) -> bool:
        return self._judge.risk(choices, node, found) < self._threshold

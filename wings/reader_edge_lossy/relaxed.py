"""Relaxed acceptance under a budget: a drafted token nearly as likely as the model's choice may stand in its place."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Annotated

from reader_edge_lossy.deviation import DeviationMeter
from reader_edge_lossy.lossy_rule import GreedyRuleConfig, LossyRule
from reader_edge_runtime.acceptance import Choices
from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers
from reader_edge_runtime.untrusted.config_checks import Range, check


@dataclass(frozen=True, slots=True)
class Relaxed(GreedyRuleConfig):
    """The best drafted token within `gap` nats of the model's choice, while the answer's total stays under `budget`.

    gap: 0.69 nats let a token through that is half as likely. budget: nats a token, a bound by construction: at no
    token of an answer has it given up more on the mean. With either of them 0, answers are those of exact decoding.
    """

    gap: Annotated[float, Range(0, 100)] = 0.69
    budget: Annotated[float, Range(0, 100)] = 0.02

    def __post_init__(self) -> None:
        check(self)

    def rule(self, ends: Collection[int], usual: WarmupAnswers | None) -> "RelaxedRule":
        return RelaxedRule(self, DeviationMeter("relaxed", asdict(self), usual), ends)


class RelaxedRule(LossyRule):
    def __init__(self, config: Relaxed, meter: DeviationMeter, ends: Collection[int]) -> None:
        super().__init__(meter, ends)
        self._config = config

    def max_nats(self, choices: Choices, node: int, rank: int) -> float:
        return min(self._config.gap, self._config.budget * self.num_taken - self.meter.nats)

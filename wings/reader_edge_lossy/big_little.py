"""Big-little decoding (BiLD, arXiv 2302.07863): a small model's token stays unless the big one finds it too unlikely.

Fallback is where drafted chains end, which in every engine is where a further token would not pay. Rollback is this
rule. Here what takes a bad token's place is the big model's choice under its grammar, and an end token counts only
where the big model chooses it, behind a text that it has scored whole.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np

from reader_edge_lossy.deviation import DeviationMeter
from reader_edge_lossy.lossy_rule import GreedyRuleConfig, LossyRule
from reader_edge_runtime.acceptance import Choices
from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers
from reader_edge_runtime.untrusted.config_checks import Range, check


@dataclass(frozen=True, slots=True)
class BigLittle(GreedyRuleConfig):
    """A drafted token stays where the model itself gives it enough.

    distance: most nats of -ln p of a token that stays: 2 is 13 % and more, 5 is 0.7 %; 0 is exact. The small model is
    the draft model or the package's speculator, beside all else that the engine drafts from.
    """

    distance: Annotated[float, Range(0, 100)] = 2.0

    def __post_init__(self) -> None:
        check(self)

    def rule(self, ends: Collection[int], usual: WarmupAnswers | None) -> "BigLittleRule":
        return BigLittleRule(self.distance, DeviationMeter("big-little", asdict(self), usual), ends)


class BigLittleRule(LossyRule):
    wants_log_sum_exp = True

    def __init__(self, distance: float, meter: DeviationMeter, ends: Collection[int]) -> None:
        super().__init__(meter, ends)
        self._distance = distance

    def max_nats(self, choices: Choices, node: int, rank: int) -> float:
        """So that a token's own -ln p is the distance at most; that of the model's choice is part of it."""
        own = float(choices.probabilities(node)[rank])
        return self._distance + float(np.log(own)) if own > 0 else 0.0

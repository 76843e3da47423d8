"""Big-little decoding (BiLD, arXiv 2302.07863): a small model writes while it is sure, and the big one corrects it.

Fallback is where the small model's chains end; rollback is the rule: what the big model gives too little is none of the
answer. Here what takes a bad token's place is the big model's choice under its grammar, and an end token counts only
where the big model chooses it, behind a text that it has scored whole.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from reader_edge_runtime.acceptance import Choices
from reader_edge_runtime.assembly import open_draft_model, open_sources
from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.drafting.draft_sources import DraftSources
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.providers import open_speculator
from reader_edge_runtime.lossy.lossy_rule import LossyRule
from reader_edge_runtime.lossy.meter import Meter
from reader_edge_runtime.lossy.strength import Strength
from reader_edge_runtime.lossy.sure_chains import SureModelSource, SureSpeculatorSource
from reader_edge_runtime.outside.config_checks import Range, check
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.speculator_part import SPECULATOR_AGREEMENT
from reader_edge_runtime.target import Target
from reader_edge_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class BigLittle(Strength):
    """A drafted token stays where the model itself gives it enough.

    distance: most nats of -ln p of a token that stays: 2 is 13 % and more, 5 is 0.7 %; 0 is exact. confidence: of the
    small model, what its likeliest token must have for its chain to go on. The small model is the draft model that is
    given, else the package's speculator; a head alone is refused. Where pass times were measured either is
    asked only where that pays.
    """

    distance: Annotated[float, Range(0, 100)] = 2.0
    confidence: Annotated[float, Range(0, 1)] = 0.6

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        return "big-little"

    def rule(self, ends: Collection[int], usual: OwnAnswers | None) -> "BigLittleRule":
        return BigLittleRule(self.distance, self.meter(usual), ends)

    def open_sources(
        self, given: DraftSources, package: ModelPackage, tokenizer: Tokenizer, target: Target, config: EngineConfig
    ) -> list[DraftSource]:
        manifest, others = package.manifest, given
        small: list[DraftSource] = []
        if given.draft_model is not None:
            model = open_draft_model(given.draft_model, package, tokenizer, config)
            small.append(SureModelSource(self.confidence, model, manifest.vocab_size, given.draft_context))
            others = replace(given, draft_model=None)
        elif given.has_speculator and manifest.speculator is not None:
            speculator = open_speculator(package, target, config)
            sizes = manifest.state_ids, manifest.vocab_size, config.max_batch
            agreement = manifest.checks.get(SPECULATOR_AGREEMENT)
            small.append(SureSpeculatorSource(self.confidence, speculator, *sizes, agreement))
            others = replace(given, has_speculator=False)
        elif given.head is not None:
            raise ConfigError(
                "A head writes no chains that end where it is unsure, as a small model of big-little does: leave the "
                "head out, give a draft model, or take another rule."
            )
        return [*small, *open_sources(others, package, tokenizer, target, config)]


class BigLittleRule(LossyRule):
    wants_log_sum_exp = True

    def __init__(self, distance: float, meter: Meter, ends: Collection[int]) -> None:
        super().__init__(meter, ends)
        self._distance = distance

    def most_nats(self, choices: Choices, node: int, rank: int) -> float:
        """So that a token's own -ln p is the distance at most; that of the model's choice is part of it."""
        own = float(choices.probabilities(node)[rank])
        return self._distance + float(np.log(own)) if own > 0 else 0.0

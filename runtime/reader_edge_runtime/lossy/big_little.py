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
from reader_edge_runtime.assembly import open_draft_model
from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.drafting.draft_sources import DraftSources, FilePath
from reader_edge_runtime.drafting.drafter import DraftRequest
from reader_edge_runtime.drafting.sources.draft_chain import DraftChain
from reader_edge_runtime.drafting.sources.draft_model import DraftModel
from reader_edge_runtime.drafting.sources.draft_model_source import DraftModelSource
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers
from reader_edge_runtime.lossy.lossy_rule import LossyRule
from reader_edge_runtime.lossy.meter import Meter
from reader_edge_runtime.lossy.strength import Strength
from reader_edge_runtime.outside.config_checks import Range, check
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class BigLittle(Strength):
    """A drafted token stays where the model itself gives it enough.

    distance: most nats of -ln p of a token that stays: 2 is 13 % and more, 5 is 0.7 %; 0 is exact. confidence: of a
    draft model, what its likeliest token must have for its chain to go on.
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

    def drafts_from(self, sources: DraftSources, path: FilePath, config: EngineConfig) -> DraftSources:
        if sources.draft_model is None:
            return sources
        package = ModelPackage.open(path)
        model = open_draft_model(sources.draft_model, package, Tokenizer.open(package), config)
        source = SureChainSource(model, package.manifest.vocab_size, self.confidence, sources.draft_context)
        return replace(sources, draft_model=None, extra=[*sources.extra, source])


class BigLittleRule(LossyRule):
    wants_log_sum_exp = True

    def __init__(self, distance: float, meter: Meter, ends: Collection[int]) -> None:
        super().__init__(meter, ends)
        self._distance = distance

    def most_nats(self, choices: Choices, node: int, rank: int) -> float:
        """So that a token's own -ln p is the distance at most; that of the model's choice is part of it."""
        own = float(choices.probabilities(node)[rank])
        return self._distance + float(np.log(own)) if own > 0 else 0.0


class SureChainSource(DraftModelSource):
    """A draft model that writes on while its likeliest token has so much; asked in every step, whatever that takes."""

    is_costly = False

    def __init__(self, model: DraftModel, vocab_size: int, confidence: float, context: int = 0) -> None:
        super().__init__(model, vocab_size, context)
        self._confidence = confidence

    def _goes_on(self, chain: DraftChain, draft_request: DraftRequest) -> bool:
        return chain.last_probability >= self._confidence and self._is_within(chain, draft_request)

"""How much may be given up: a rule's strength, as a value that makes the rule of each answer."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import ClassVar

from reader_edge_runtime.acceptance import AcceptanceRule
from reader_edge_runtime.assembly import Progress, open_sources
from reader_edge_runtime.config import EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.drafting.draft_sources import DraftSources
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.lossy.meter import Meter
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target
from reader_edge_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Strength(ABC):
    """What a user asks of a lossy rule. name: of the rule, as answers tell it. is_greedy: whether it draws no token."""

    is_greedy: ClassVar[bool] = True

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def rule(self, ends: Collection[int], usual: OwnAnswers | None) -> AcceptanceRule:
        """The rule of one answer. ends: tokens that end it. usual: what the model itself says elsewhere."""

    def open_sources(
        self, given: DraftSources, package: ModelPackage, tokenizer: Tokenizer, target: Target, config: EngineConfig
    ) -> list[DraftSource]:
        """What the engine of a package drafts from: as everywhere, unless the rule drafts its own way."""
        return open_sources(given, package, tokenizer, target, config)

    def opened(self, package: ModelPackage, tokenizer: Tokenizer) -> "Strength":
        """The same for one model, with all that the rule reads from files."""
        return self

    def decoder(self, made: Decoder, on_calibration: Progress | None) -> Decoder:
        """What decodes by it: the exact engine's decoder, unless the rule takes one of its own."""
        return made

    def refuse(self, config: GenerationConfig) -> None:
        """Raise ConfigError for an answer that the rule cannot give."""
        asked = config.sampling or SamplingConfig()
        if asked != SamplingConfig(top_k=asked.top_k, top_p=asked.top_p, min_p=asked.min_p, seed=asked.seed):
            raise ConfigError(
                "Lossy answers are greedy, and compare tokens by the model's own logits: send temperature 0, without "
                "penalties and biases. Of the rules `views` alone takes them."
            )

    def meter(self, usual: OwnAnswers | None) -> Meter:
        """Of one answer."""
        return Meter(self.name, asdict(self), usual)

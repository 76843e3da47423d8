"""How much may be given up: a rule's strength, as a value that makes the rule of each answer."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import asdict, dataclass

from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.drafting.draft_sources import DraftSources, FilePath
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers
from reader_edge_runtime.lossy.lossy_rule import LossyRule
from reader_edge_runtime.lossy.meter import Meter


@dataclass(frozen=True, slots=True)
class Strength(ABC):
    """What a user asks of a lossy rule. name: of the rule, as answers tell it."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def rule(self, ends: Collection[int], usual: OwnAnswers | None) -> LossyRule:
        """The rule of one answer. ends: tokens that end it. usual: what the model itself says elsewhere."""

    def drafts_from(self, sources: DraftSources, path: FilePath, config: EngineConfig) -> DraftSources:
        """What the engine of a package drafts from: what it was given, unless the rule drafts its own way."""
        return sources

    def meter(self, usual: OwnAnswers | None) -> Meter:
        """Of one answer."""
        return Meter(self.name, asdict(self), usual)

"""The seam for rules that are not exact: a value from which an engine makes the acceptance rule of each answer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import ClassVar

from reader_edge_runtime.acceptance import AcceptanceRule
from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers


class RuleConfig(ABC):
    """A rule and its figures. is_greedy: whether it draws no token.

    Packages of such rules name them as entry points in the group `reader_edge.rules`: NAME:FIGURE:... on the command
    line is the class of that name, made of these figures in the order of its fields.
    """

    is_greedy: ClassVar[bool] = True

    @abstractmethod
    def rule(self, ends: Collection[int], usual: OwnAnswers | None) -> AcceptanceRule:
        """The rule of one answer. ends: tokens that end it. usual: other answers of the model, without this rule."""

    def check(self, config: GenerationConfig) -> None:  # noqa: B027
        """Raise ConfigError for an answer that the rule cannot give."""

    def decoder(self, made: Decoder, on_calibration: Callable[[int, int], None] | None) -> Decoder:
        """What decodes by it: the exact engine's decoder, unless the rule takes one of its own. Raises ConfigError."""
        return made

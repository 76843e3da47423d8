"""The interface of lossy rules (`--rule`): a config from which an engine makes the acceptance rule of each answer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import ClassVar

from reader_edge_runtime.acceptance import AcceptanceRule
from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.drafting.draft_sources import DraftSources
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.untrusted.config_checks import require


class RuleConfig(ABC):
    """A rule and its figures. is_greedy: whether it draws no token.

    Packages of such rules name them as entry points in the group `reader_edge.rules`: NAME:FIGURE:... on the command
    line is the class of that name, made of these figures in the order of its fields.
    """

    is_greedy: ClassVar[bool] = True

    @abstractmethod
    def rule(self, ends: Collection[int], usual: WarmupAnswers | None) -> AcceptanceRule:
        """The rule of one answer. ends: tokens that end it. usual: other answers of the model, without this rule."""

    def check(self, config: GenerationConfig) -> None:  # noqa: B027
        """Raise ConfigError for an answer that the rule cannot give."""

    def decoder(self, made: Decoder, on_calibration: Callable[[int, int], None] | None) -> Decoder:
        """What decodes by it: the exact engine's decoder, unless the rule takes one of its own. Raises ConfigError."""
        return made


def ruled_config(
    config: GenerationConfig, rule: RuleConfig | None, ends: Collection[int], usual: WarmupAnswers | None
) -> GenerationConfig:
    """A config with the acceptance rule of its answer. ends: the model's end tokens. Raises ConfigError."""
    if rule is not None:
        rule.check(config)
        return replace(config, acceptance=rule.rule({*ends, *config.stop_token_ids}, usual))
    if not config.acceptance.is_exact:
        raise ConfigError(
            f"The acceptance rule {config.acceptance.name!r} may change answers, and what this engine learns of "
            "them serves exact ones: load an engine with rule=, or leave it out."
        )
    return config


def check_rule(rule: object, sources: DraftSources, drafter: Drafter | None, prefix_cache: object) -> None:
    """Raise ConfigError for what is neither a rule nor None, and for what learns from answers beside a rule."""
    require(rule is None or isinstance(rule, RuleConfig), "rule", rule, "a RuleConfig, such as Relaxed()")
    if rule is not None and (sources.history is not None or drafter is not None or prefix_cache is not None):
        other = "A history file" if drafter is None else "A drafter of your own"
        other = other if prefix_cache is None else "A prefix cache"
        raise ConfigError(f"{other} serves exact answers: leave it out beside a rule, or leave the rule out.")

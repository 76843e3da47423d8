"""Options that name a lossy rule and its strength, and the engine that they come to."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click

import reader_edge

if TYPE_CHECKING:
    from reader_edge_runtime.lossy.lossy_engine import LossyEngine
    from reader_edge_runtime.lossy.strength import Strength

T = TypeVar("T")

RULES = ("relaxed", "big-little")


@dataclass(frozen=True, slots=True)
class AskedRule:
    """What a user asks of a lossy rule, as options say it; those of other rules are left alone."""

    rule: str
    gap: float
    budget: float
    distance: float
    confidence: float

    def strength(self) -> "Strength":
        """Raises ConfigError for what no rule takes."""
        from reader_edge_runtime.lossy.big_little import BigLittle
        from reader_edge_runtime.lossy.relaxed import Relaxed

        return Relaxed(self.gap, self.budget) if self.rule == "relaxed" else BigLittle(self.distance, self.confidence)

    def load(
        self, model: str | None, config: "reader_edge.EngineConfig", sources: "reader_edge.DraftSources"
    ) -> "LossyEngine":
        """The engine of a model by this rule; see `load_engine`."""
        from reader_edge.model_source import load_with
        from reader_edge_runtime.lossy.lossy_engine import LossyEngine

        return load_with(partial(LossyEngine.load, strength=self.strength()), model, config, sources)


def rule(command: Callable[..., T]) -> Callable[..., T]:
    """The options of an AskedRule."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--rule",
        type=click.Choice(RULES),
        default="relaxed",
        show_default=True,
        help="Which drafted tokens may stand in place of the model's choice: those nearly as likely as it, or all that "
        "the model gives enough.",
    ),
    click.option(
        "--gap",
        default=0.69,
        show_default=True,
        help="relaxed: most nats that a token may be less likely than the model's choice (0.69: half as likely); 0 is "
        "exact.",
    ),
    click.option(
        "--budget",
        default=0.02,
        show_default=True,
        help="relaxed: most nats that an answer gives up, a token on the mean; 0 is exact.",
    ),
    click.option(
        "--distance",
        default=2.0,
        show_default=True,
        help="big-little: most nats of -ln p of a drafted token that stays (2: 13 % and more); 0 is exact.",
    ),
    click.option(
        "--confidence",
        default=0.6,
        show_default=True,
        help="big-little: a draft model writes on while its likeliest token has so much probability.",
    ),
)

"""Options that name a lossy rule and its strength, and the engine that they come to."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource

import reader_edge
from reader_edge.commands import options

if TYPE_CHECKING:
    from reader_edge_runtime.lossy.lossy_engine import LossyEngine
    from reader_edge_runtime.lossy.strength import Strength

T = TypeVar("T")

_OPTIONS_OF = {
    "relaxed": ("gap", "budget"),
    "big-little": ("distance", "confidence"),
    "judge": ("judge", "threshold"),
    "views": ("context", "weight"),
}
RULES = tuple(_OPTIONS_OF)


@dataclass(frozen=True, slots=True)
class AskedRule:
    """What a user asks of a lossy rule, as options say it; those of other rules are not looked at."""

    rule: str
    gap: float
    budget: float
    distance: float
    confidence: float
    judge: Path | None
    threshold: float
    context: int
    weight: float

    def check(self, context: click.Context) -> None:
        """Raise UsageError for an option that another rule is for, or where the judge is missing."""
        for other, names in _OPTIONS_OF.items():
            for name in names if other != self.rule else ():
                if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                    raise click.UsageError(f"--{name} is of --rule {other}, not of {self.rule}: leave it out.")
        if self.rule == "judge" and self.judge is None:
            raise click.UsageError("--rule judge needs --judge FILE: `reader-edge lossy train-judge` writes one.")

    def strength(self) -> "Strength":
        """Raises ConfigError for what no rule takes."""
        first, second = _OPTIONS_OF[self.rule]
        return strength_of(self.rule, getattr(self, first), getattr(self, second))

    def load(
        self, model: str | None, config: "reader_edge.EngineConfig", sources: "reader_edge.DraftSources"
    ) -> "LossyEngine":
        """The engine of a model by this rule; see `load_engine`."""
        from reader_edge.model_source import load_with
        from reader_edge_runtime.lossy.lossy_engine import LossyEngine

        return load_with(partial(LossyEngine.load, strength=self.strength()), model, config, sources)


def strength_of(rule: str, first: str | float, second: float) -> "Strength":
    """Of a rule of RULES and its two figures, the first of the judge's a file. Raises ConfigError."""
    from reader_edge_runtime.lossy.big_little import BigLittle
    from reader_edge_runtime.lossy.judge import Judged
    from reader_edge_runtime.lossy.relaxed import Relaxed
    from reader_edge_runtime.lossy.views.views import Views

    if rule == "judge":
        return Judged(str(first), second)
    if rule == "views":
        context = float(first)
        return Views(int(context) if context.is_integer() else context, second)  # type: ignore[arg-type]  # is refused
    return (Relaxed if rule == "relaxed" else BigLittle)(float(first), second)


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
        help="Which drafted tokens may stand in place of the model's choice: those nearly as likely as it, all that "
        "the model gives enough, or those that hardly change the final answer by a trained judge. None of these is "
        "faster than exact decoding with SmolLM2-135M. views: no drafted ones, but all of a long prompt and what bears "
        "on its end choose together.",
    ),
    click.option(
        "--gap",
        type=options.FiniteRange(0, 100),
        default=0.69,
        show_default=True,
        help="relaxed: most nats that a token may be less likely than the model's choice (0.69: half as likely); 0 is "
        "exact.",
    ),
    click.option(
        "--budget",
        type=options.FiniteRange(0, 100),
        default=0.02,
        show_default=True,
        help="relaxed: most nats that an answer gives up, a token on the mean; 0 is exact.",
    ),
    click.option(
        "--distance",
        type=options.FiniteRange(0, 100),
        default=2.0,
        show_default=True,
        help="big-little: most nats of -ln p of a drafted token that stays (2: 13 % and more); 0 is exact.",
    ),
    click.option(
        "--confidence",
        type=options.FiniteRange(0, 1),
        default=0.6,
        show_default=True,
        help="big-little: the draft model, or the package's speculator, writes on while its likeliest token has "
        "so much probability.",
    ),
    click.option(
        "--judge", type=options.FILE, help="judge: a file of `reader-edge lossy train-judge`, for this model."
    ),
    click.option(
        "--threshold",
        type=options.FiniteRange(0, 1),
        default=0.1,
        show_default=True,
        help="judge: a token stays where it changes the final answer with less than this chance; 0 is exact.",
    ),
    click.option(
        "--context",
        type=options.IntegerRange(64, 1 << 28),
        default=256,
        show_default=True,
        help="views: tokens of the prompt that are retrieved, at most: its end, and the passages most like that.",
    ),
    click.option(
        "--weight",
        type=options.FiniteRange(0, 1),
        default=0.5,
        show_default=True,
        help="views: how much the retrieved tokens have to say beside the whole prompt; 0 is exact, 1 leaves it out.",
    ),
)

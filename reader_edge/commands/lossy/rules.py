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


@dataclass(frozen=True, slots=True)
class AskedRule:
    """What a user asks of a lossy rule, as options say it."""

    gap: float
    budget: float

    def strength(self) -> "Strength":
        """Raises ConfigError for what no rule takes."""
        from reader_edge_runtime.lossy.relaxed import Relaxed

        return Relaxed(self.gap, self.budget)

    def load(
        self, model: str | None, config: "reader_edge.EngineConfig", sources: "reader_edge.DraftSources"
    ) -> "LossyEngine":
        """The engine of a model by this rule; see `load_engine`."""
        from reader_edge.model_source import load_with
        from reader_edge_runtime.lossy.lossy_engine import LossyEngine

        return load_with(partial(LossyEngine.load, strength=self.strength()), model, config, sources)


def rule(command: Callable[..., T]) -> Callable[..., T]:
    """The options of an AskedRule."""
    gap = click.option(
        "--gap",
        default=0.69,
        show_default=True,
        help="Let a drafted token stand that is so many nats less likely than the model's choice (0.69: half as "
        "likely); 0 is exact.",
    )
    budget = click.option(
        "--budget",
        default=0.02,
        show_default=True,
        help="Most nats that an answer gives up, a token on the mean; 0 is exact.",
    )
    return gap(budget(command))

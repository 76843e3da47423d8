"""Options that say how tokens are chosen: what is left open is as the model's maker recommends, or greedy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import click

import reader_edge
from reader_edge.commands.options import FiniteRange, IntegerRange

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GivenSampling:
    """What a user says of SamplingConfig, by the names of its fields; None where nothing. is_greedy: take no other's
    recommendation. Raises UsageError where both are given."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    is_greedy: bool = False

    def __post_init__(self) -> None:
        if self.is_greedy and self.values:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in self.values)
            raise click.UsageError(f"--greedy takes the likeliest token each time: leave {named} out, or --greedy.")

    @property
    def values(self) -> dict[str, float]:
        """Those that were given."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "is_greedy"}
        return {name: value for name, value in given.items() if value is not None}

    def chosen(self, own: Mapping[str, float]) -> "reader_edge.SamplingConfig":
        """For a model that recommends `own`, with a seed where tokens are drawn."""
        from reader_edge_runtime.generation_config import chosen_sampling

        return chosen_sampling({} if self.is_greedy else own, self.values)

    def in_force(self, own: Mapping[str, float]) -> str:
        """The same in words."""
        chosen = self.chosen(own)
        words = str(chosen)
        return words if not self.note(chosen) else f"{words.rpartition(', seed')[0]}, each answer with a seed by chance"

    def changed(self, name: str, text: str) -> "GivenSampling":
        """With another value, as a user types it; "" for none. name: of its option. Raises ClickException."""
        kinds = {each: kind for each, kind in _KINDS.items() if each.replace("_", "-") == name}
        if not kinds:
            known = ", ".join(each.replace("_", "-") for each in _KINDS)
            raise click.ClickException(f"There is no {name} to set: name one of {known}, max-tokens or greedy.")
        value = {each: kind.convert(text, None, None) if text else None for each, kind in kinds.items()}
        return replace(self, is_greedy=False, **value)

    def note(self, chosen: "reader_edge.SamplingConfig") -> str:
        """By what an answer can be repeated whose seed nobody gave; "" where there is none."""
        if self.seed is not None or not chosen.temperature:
            return ""
        return f"Sampled with {chosen}: --seed gives this text again, --greedy draws nothing."


_KINDS: Mapping[str, Any] = {
    "temperature": FiniteRange(0, 100),
    "top_k": IntegerRange(0, 2**31 - 1),
    "top_p": FiniteRange(0, 1),
    "min_p": FiniteRange(0, 1),
    "seed": IntegerRange(0, 2**64 - 1),
    "repetition_penalty": FiniteRange(0.01, 100),
    "frequency_penalty": FiniteRange(-2, 2),
    "presence_penalty": FiniteRange(-2, 2),
}
_OWN = "Default: as the model recommends, else"
_OPTIONS = (
    click.option(
        "-t",
        "--temperature",
        type=_KINDS["temperature"],
        help=f"How random the choice is; 0 always takes the likeliest token. {_OWN} 0.",
    ),
    click.option(
        "--top-k",
        type=_KINDS["top_k"],
        help=f"Sample from this many of the likeliest tokens; 0 is off. {_OWN} 0.",
    ),
    click.option(
        "--top-p",
        type=_KINDS["top_p"],
        help=f"Sample from the likeliest tokens up to this total probability; 1 is off. {_OWN} 1.",
    ),
    click.option(
        "--min-p",
        type=_KINDS["min_p"],
        help=f"Drop tokens less likely than this fraction of the likeliest one's probability; 0 is off. {_OWN} 0.",
    ),
    click.option(
        "--seed",
        type=_KINDS["seed"],
        help="The same seed gives the same text, drafted or not. Default: one by chance, shown with the answer.",
    ),
    click.option(
        "--repetition-penalty",
        type=_KINDS["repetition_penalty"],
        help=f"Above 1, make tokens that are already in prompt or answer less likely; 1 is off. {_OWN} 1.",
    ),
    click.option(
        "--frequency-penalty",
        type=_KINDS["frequency_penalty"],
        help="Subtract this from a token's logit for each time that it is in the answer; 0 is off.",
    ),
    click.option(
        "--presence-penalty",
        type=_KINDS["presence_penalty"],
        help="Subtract this from the logit of every token already in the answer; 0 is off.",
    ),
    click.option(
        "--greedy",
        "is_greedy",
        is_flag=True,
        help="Take the likeliest token each time, whatever the model recommends (`reader-edge info`).",
    ),
)


_MEASURED = (
    click.option(
        "-t",
        "--temperature",
        type=_KINDS["temperature"],
        default=0.0,
        show_default=True,
        help="How random the choice is, whatever the model recommends; 0 always takes the likeliest token.",
    ),
    click.option(
        "--top-p",
        type=_KINDS["top_p"],
        default=1.0,
        show_default=True,
        help="Sample from the likeliest tokens up to this total probability; 1 is off.",
    ),
    click.option(
        "--seed",
        type=_KINDS["seed"],
        default=0,
        show_default=True,
        help="The same seed gives the same text, drafted or not.",
    ),
)


def sampling(command: Callable[..., T]) -> Callable[..., T]:
    """The options of a GivenSampling."""
    return _decorated(command, _OPTIONS)


def measured_sampling(command: Callable[..., T]) -> Callable[..., T]:
    """What measurements let a user say of SamplingConfig: they are to be compared and repeated."""
    return _decorated(command, _MEASURED)


def _decorated(command: Callable[..., T], all_options: Sequence[Callable[..., Callable[..., T]]]) -> Callable[..., T]:
    for option in reversed(all_options):
        command = option(command)
    return command

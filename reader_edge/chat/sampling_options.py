"""Options that say how tokens are chosen; those left out are as the model's maker recommends, or greedy."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, get_args

import click

import reader_edge
from reader_edge.commands.options import value_type
from reader_edge_runtime.config import SamplingConfig

_RANGES = {each.name: get_args(each.type)[-1] for each in fields(SamplingConfig)}


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """What a user says of SamplingConfig, by the names of its fields; None where nothing. Raises UsageError where
    values are given besides `is_greedy`.

    -t --temperature temperature: How random the choice is; 0 always takes the likeliest token. Default: as the model
      recommends, else 0.
    top_k: Sample from this many of the likeliest tokens; 0 is off. Default: as the model recommends, else 0.
    top_p: Sample from the likeliest tokens up to this total probability; 1 is off. Default: as the model recommends,
      else 1.
    min_p: Drop tokens less likely than this fraction of the likeliest one's probability; 0 is off. Default: as the
      model recommends, else 0.
    seed: The same seed gives the same text, drafted or not. Default: one by chance, shown with the answer.
    repetition_penalty: Above 1, make tokens that are already in prompt or answer less likely; 1 is off. Default: as the
      model recommends, else 1.
    frequency_penalty: Subtract this from a token's logit for each time that it is in the answer; 0 is off.
    presence_penalty: Subtract this from the logit of every token already in the answer; 0 is off.
    --greedy is_greedy: Take the likeliest token each time, whatever the model recommends (`reader-edge info`).
    """

    temperature: Annotated[float | None, _RANGES["temperature"]] = None
    top_k: Annotated[int | None, _RANGES["top_k"]] = None
    top_p: Annotated[float | None, _RANGES["top_p"]] = None
    min_p: Annotated[float | None, _RANGES["min_p"]] = None
    seed: Annotated[int | None, _RANGES["seed"]] = None
    repetition_penalty: Annotated[float | None, _RANGES["repetition_penalty"]] = None
    frequency_penalty: Annotated[float | None, _RANGES["frequency_penalty"]] = None
    presence_penalty: Annotated[float | None, _RANGES["presence_penalty"]] = None
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

    def changed(self, name: str, text: str) -> "SamplingOptions":
        """With another value, as a user types it; "" for none. name: of its option. Raises ClickException."""
        kinds = {each.name.replace("_", "-"): value_type(each) for each in fields(self) if each.name != "is_greedy"}
        if (kind := kinds.get(name)) is None:
            known = ", ".join(kinds)
            raise click.ClickException(f"There is no {name} to set: name one of {known}, max-tokens or greedy.")
        value = kind.convert(text, None, None) if text else None
        return replace(self, is_greedy=False, **{name.replace("-", "_"): value})

    def note(self, chosen: "reader_edge.SamplingConfig") -> str:
        """By what an answer can be repeated whose seed nobody gave; "" where there is none."""
        if self.seed is not None or not chosen.temperature:
            return ""
        return f"Sampled with {chosen}: --seed gives this text again, --greedy draws nothing."


class MeasuredSampling(SamplingConfig):
    """What measurements let a user say of SamplingConfig: they are to be compared and repeated.

    -t --temperature temperature: How random the choice is, whatever the model recommends; 0 always takes the likeliest
      token.
    top_p: Sample from the likeliest tokens up to this total probability; 1 is off.
    seed: The same seed gives the same text, drafted or not.
    """

"""The fields of a request's JSON object, each taken once: what nobody takes is refused."""

import sys
from collections.abc import Mapping
from typing import TypeVar

from reader_edge.server.api_error import ApiError, wrong_value

Kind = TypeVar("Kind")

_MAX_FLOAT = int(sys.float_info.max)  # a whole number beyond it is no number to count with

# Told for other systems' sake, and without effect on an answer.
IGNORED = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier", "parallel_tool_calls"),
        *("prompt_cache_key", "prompt_cache_retention"),
    )
)
# What is not supported, with the values that ask for nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}


class Fields:
    """A field that is null is as good as one left out."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._left = {name: value for name, value in values.items() if value is not None}

    def has(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str) -> object:
        """A field's value as it is, None where there is none."""
        return self._left.pop(name, None)

    def get(self, name: str, kind: type[Kind], default: Kind, words: str) -> Kind:
        """A field's value, of a kind that `words` describe."""
        value = self.take(name)
        if value is None:
            return default
        is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_FLOAT
        if is_whole and kind is float:
            return kind(value)  # type: ignore[call-arg]
        if not isinstance(value, kind) or (isinstance(value, int) and kind is not bool and not is_whole):
            raise wrong_value(name, value, words, name, "invalid_type")
        return value

    def flag(self, name: str) -> bool:
        """True or false, which is what a field left out means."""
        return self.get(name, bool, False, "true or false")

    def integer(self, name: str, default: int) -> int:
        return self.get(name, int, default, "a whole number")

    def number(self, name: str, default: float) -> float:
        return self.get(name, float, default, "a number")

    def refuse_rest(self) -> None:
        """Raise ApiError for what was not taken and would change an answer."""
        for name, value in self._left.items():
            if name in IGNORED or value in _NEUTRAL.get(name, ()):
                continue
            if name in _NEUTRAL:
                raise ApiError(400, f"'{name}' is not supported here: leave it out.", name, "unsupported_parameter")
            raise ApiError(400, f"There is no field {name!r:.60}: leave it out.", name[:60], "unknown_parameter")

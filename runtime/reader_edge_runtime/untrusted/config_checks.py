"""How the fields of configs are held to what they may be: `ConfigError` names the value and what is allowed.

Numbers of numpy are taken, and kept as Python's.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from numbers import Integral, Real
from typing import Annotated, Any, TypeVar, get_args, get_origin

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.untrusted.user_input import short_repr, withheld

_Config = TypeVar("_Config", bound=type)
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Range:
    """What a number may be, both ends included; words say it where the numbers would be hard to read."""

    least: float
    most: float = math.inf
    words: str = ""

    def __str__(self) -> str:
        return self.words or (f"from {self.least} to {self.most}" if self.most < math.inf else f"{self.least} or more")


def check(config: Any) -> None:
    """Hold a config's numbers to the ranges that they are annotated with, and its flags to being flags."""
    for each in fields(config):
        value = getattr(config, each.name)
        if each.type is bool:
            require(isinstance(value, bool), each.name, value, "True or False")
        elif get_origin(each.type) is Annotated:
            object.__setattr__(config, each.name, number(each.name, value, *get_args(each.type)))


def number(name: str, value: Any, kind: type[_Number], allowed: Range) -> _Number:
    is_kind = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    require(is_kind, name, value, "a whole number" if kind is int else "a number")
    require(allowed.least <= value <= allowed.most, name, value, str(allowed))
    return kind(value)


def require(is_valid: bool, name: str, value: object, allowed: str) -> None:
    if not is_valid:
        sentence = "{} is {}, but must be {}.".format
        error = ConfigError(sentence(name, short_repr(value), allowed))
        raise error.with_public(sentence(name, withheld(value), allowed))


def require_known(given: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Raise ConfigError for the first name that is none of those that are known. kind: of what is named."""
    known = list(known)
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, known, 1)
        remedy = f"do you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
        raise ConfigError(f"There is no {kind} {unknown!r}: {remedy}")


def refusing_unknown(parts: Mapping[str, type]) -> Callable[[_Config], _Config]:
    """Have a config refuse a field that it has not in one sentence. parts: the configs that fields of it hold."""

    def refusing(config: _Config) -> _Config:
        make: Callable[..., None] = config.__init__  # type: ignore[misc]

        @wraps(make)
        def checked(self: object, *values: object, **given: object) -> None:
            for place, part in parts.items():
                if meant := next((name for name in given if name in part.__dataclass_fields__), None):  # type: ignore[attr-defined]
                    where = f"give {place}={part.__name__}({meant}=...), or give it beside the prompt"
                    raise ConfigError(f"{config.__name__} has no field {meant!r}, but its {place} has: {where}.")
            require_known(given, [each.name for each in fields(self)], f"field of {config.__name__}")  # type: ignore[arg-type]
            make(self, *values, **given)

        config.__init__ = checked  # type: ignore[misc]
        return config

    return refusing

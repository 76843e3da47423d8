"""How the fields of configs are held to what they may be: `ConfigError` names the value and what is allowed.

Numbers of numpy are taken, and kept as Python's.
"""

import math
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Annotated, Any, TypeVar, get_args, get_origin

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.outside.user_input import shown

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
        raise ConfigError(f"{name} is {shown(value)}, but must be {allowed}.")

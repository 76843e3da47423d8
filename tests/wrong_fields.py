"""Generates wrong values for each field of a file or frame, from a right one and its class."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec
import pytest

from reader_edge_runtime.errors import UserFileError
from reader_edge_runtime.untrusted.untrusted_json import converted

_MISSING = object()
_CONTROL = "a\x1b[2J"
_VALUES: tuple[Any, ...] = (
    _MISSING,
    None,
    True,
    7.5,
    2.0,
    -1,
    0,
    10**400,
    "7",
    _CONTROL,
    "x" * 5000,
    [],
    [[]],
    {},
    {_CONTROL: 1},
)


def wrong_fields(kind: Any, right: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Copies of a right object, each with a value that its class refuses, and the field of the object that it is in.

    Fails for a place of `right` for which the class takes all that is tried.
    """
    msgspec.convert(right, kind)
    for steps in _places(right):
        spoilt = [each for value in _VALUES if not _fits(each := _replaced(right, steps, value), kind)]
        assert spoilt, f"{steps} may be anything"
        yield from ((str(steps[0]), each) for each in spoilt)


def assert_each_is_named(kind: Any, right: dict[str, Any]) -> None:
    """Whatever is wrong with an object, one sentence has the field, a value and the remedy."""
    for field, fields in wrong_fields(kind, right):
        with pytest.raises(UserFileError, match=rf"^'a' has an unusable (name in )?{field}\b.* \(.+\): b\.$") as caught:
            converted(fields, kind, "'a'", UserFileError, "b")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300


def _places(value: Any) -> Iterator[tuple[str | int, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, each in entries:
        yield (step,)
        yield from ((step, *steps) for steps in _places(each))


def _replaced(right: Any, steps: tuple[str | int, ...], value: object) -> Any:
    spoilt = inner = deepcopy(right)
    for step in steps[:-1]:
        inner = inner[step]
    if value is _MISSING:
        del inner[steps[-1]]
    else:
        inner[steps[-1]] = value
    return spoilt


def _fits(values: Any, kind: Any) -> bool:
    try:
        msgspec.convert(values, kind)
    except msgspec.ValidationError:
        return False
    return True

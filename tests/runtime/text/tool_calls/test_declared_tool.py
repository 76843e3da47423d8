"""A Python function is the tool that its signature and its docstring describe, or is refused in one sentence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.text.conversation_check import check_tools
from reader_edge_runtime.text.tool_calls.declared_tool import declared_tool


class Unit(Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


class Place(TypedDict):
    city: str
    country: NotRequired[str]


@dataclass
class Trip:
    places: list[Place]
    days: int = 1


@dataclass
class Tree:
    left: "Tree | None"
    right: "Tree | None"


class Model:
    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "title": "Model"}


class Thermometer:
    def read(self, unit: Unit = Unit.CELSIUS) -> float:
        """The temperature here."""
        return 0.0


def weather(city: str, unit: Literal["c", "f"] = "c", days: int | None = None, further: Any = None) -> float:
    """How warm it is
    somewhere.

    Args:
        city: The name
            of a city.
        unit (str, optional): Celsius or Fahrenheit.

    Returns:
        degrees: a number
    """
    return 0.0


async def search(words: Sequence[str], limits: Mapping[str, float], *, is_new: bool) -> None:
    """Search the web.

    :param words: what to look for
    :param bool is_new: whether it is
        of today
    :returns: nothing
    """


def travel(trip: Trip, model: Model, note: Annotated[str, "What else there is."], size: tuple[int, int]) -> None:
    pass


def declared(tool: Callable[..., Any]) -> Any:
    check_tools([declared_tool(tool)])
    return declared_tool(tool)["function"]


def test_functions_are_described_by_signature_and_docstring() -> None:
    found = declared(weather)
    assert (found["name"], found["description"]) == ("weather", "How warm it is somewhere.")
    assert found["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The name of a city."},
            "unit": {"type": "string", "enum": ["c", "f"], "description": "Celsius or Fahrenheit."},
            "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "further": {},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    found = declared(Thermometer().read)
    assert found["parameters"]["properties"] == {"unit": {"type": "string", "enum": ["c", "f"]}}
    function = {"name": "f", "parameters": {"type": "object"}}
    assert declared_tool({"type": "function", "function": function})["function"] == function
    assert declared_tool({"type": "function", **function})["function"] == function


def test_types_within_types_and_docstrings_of_sphinx_are_described() -> None:
    found = declared(travel)
    assert "description" not in found
    properties = found["parameters"]["properties"]
    assert properties["trip"]["required"] == ["places"]
    assert properties["trip"]["properties"]["places"]["items"]["required"] == ["city"]
    assert properties["trip"]["properties"]["places"]["items"]["properties"]["country"] == {"type": "string"}
    assert properties["model"] == {"type": "object", "title": "Model"}
    assert properties["note"] == {"type": "string", "description": "What else there is."}
    assert properties["size"] == {"type": "array", "items": {"type": "integer"}}
    found = declared(search)
    assert found["description"] == "Search the web."
    assert found["parameters"]["properties"] == {
        "words": {"type": "array", "items": {"type": "string"}, "description": "what to look for"},
        "limits": {"type": "object", "additionalProperties": {"type": "number"}},
        "is_new": {"type": "boolean", "description": "whether it is of today"},
    }
    assert found["parameters"]["required"] == ["words", "limits", "is_new"]


def any_number(*numbers: int) -> None: ...
def any_name(**names: int) -> None: ...
def by_place(number: int, /) -> None: ...
def of_bytes(data: bytes) -> None: ...
def of_none(unit: Literal[b"c"]) -> None: ...
def of_trees(tree: Tree) -> None: ...
def of_unknown(thing: "Nothing") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (any_number, "cannot have '\\*numbers: int'"),
        (any_name, "cannot have '\\*\\*names: int'"),
        (by_place, "cannot have 'number: int'"),
        (of_bytes, "The type of 'data' of of_bytes.. is bytes, which JSON has no word for"),
        (of_none, "The values of 'unit'"),
        (of_trees, "The type of 'left' of Tree holds itself"),
        (of_unknown, "cannot be read .*Nothing"),
        (Unit, "must be a function"),
        ("weather", "must be a function"),
        (5, "must be a function"),
    ],
)
def test_what_no_call_could_name_is_refused(tool: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        declared_tool(tool)

"""Following JSON: at every character a cursor is where a reader of the whole text is."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.text.tool_calls.json_cursor import MAX_DEPTH, CursorPlace, JsonCursor

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
SCALARS = st.none() | st.booleans() | st.integers(-999, 999) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)


def scalars_of(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """Raw scalars by path, of items the last."""
    if isinstance(value, dict):
        parts = [scalars_of(each, (*path, json.dumps(key)[1:-1])) for key, each in value.items()]
    elif isinstance(value, list):
        parts = [scalars_of(each, (*path, "")) for each in value]
    else:
        return {path: json.dumps(value)}
    return {key: text for part in parts for key, text in part.items()}


@settings(max_examples=40)
@given(OBJECTS, st.sampled_from([None, 2]), st.sampled_from([(", ", ": "), (",", ":"), (" , ", " :  ")]), st.data())
def test_a_cursor_reads_what_a_reader_of_the_whole_reads(
    value: dict[str, Any], indent: int | None, separators: tuple[str, str], data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent, separators=separators)
    cursor = JsonCursor()
    at = data.draw(st.integers(0, len(text)))
    assert cursor.feed(text[:at]) == ""
    other = cursor.copy()
    assert (cursor.place is CursorPlace.DONE) == (at == len(text))
    for each in (cursor, other):
        assert each.feed(text[at:] + " rest") == " rest"
        assert each.place is CursorPlace.DONE
        assert each.scalars == scalars_of(value)


def test_a_cursor_knows_where_it_is() -> None:
    cursor = JsonCursor()
    for text, place, path in [
        ("{", CursorPlace.KEY, ("",)),
        ('"a', CursorPlace.IN_KEY, ("",)),
        ('"', CursorPlace.COLON, ("a",)),
        (":", CursorPlace.VALUE, ("a",)),
        ("  [", CursorPlace.VALUE, ("a", "")),
        ("12", CursorPlace.SCALAR, ("a", "")),
        (",", CursorPlace.VALUE, ("a", "")),
        ('"x', CursorPlace.STRING, ("a", "")),
        ('\\"y"', CursorPlace.AFTER, ("a", "")),
        ("]", CursorPlace.AFTER, ("a",)),
    ]:
        assert cursor.feed(text) == ""
        assert (cursor.place, cursor.path) == (place, path)
    assert cursor.gaps == {":": "  ", ",": ""}


def test_what_is_no_json_or_too_deep_is_lost() -> None:
    for text in ("}", '{"a" 1', "{1", '{"a": ]', "x", "[" * (MAX_DEPTH + 1)):
        cursor = JsonCursor()
        cursor.feed(text)
        assert cursor.place is CursorPlace.LOST
        assert cursor.feed("more") == "more"

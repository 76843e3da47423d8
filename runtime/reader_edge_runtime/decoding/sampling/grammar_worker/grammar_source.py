"""A grammar as llguidance takes it; of a JSON schema what it can enforce, and a list of what it cannot."""

import copy
import json
import re
import sys
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from .answer_check import number
from .enforced_schema import EnforcedSchema
from .lark_ends import can_end

_IN_LARK = re.compile(r"%json\s*")
_UNSOUND = re.compile("Expected|Invalid|must be")  # how the library refuses what is no schema
_COUNTS = "min/maxProperties"
_WARNINGS = {"oneOf": "'oneOf' beyond 'anyOf'", _COUNTS: "'minProperties' and 'maxProperties'"}  # by their first words
_OPTIONS = "x-guidance"
_KEYS = ("patternProperties", "additionalProperties", "unevaluatedProperties")


Schema = dict[str, Any]


class GrammarSource:
    """left_out: what of lenient schemas is not enforced, in words. schema: what answers are compared with, if one.

    has_calls: whether its JSON is in calls. is_open: whether the answer may have objects with keys that are not listed.
    has_key_patterns: whether there are patterns of keys. Raises ValueError or RecursionError.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.left_out: list[str] = []
        self.is_open = self.has_key_patterns = False
        self.schema: Any = None
        self.has_calls = kind == "tool_calls"
        self._kind = kind
        self._parts: list[Any] = []  # of the text: texts, and schemas in between
        self._lenient: list[Any] = []
        if kind == "json_schema":
            self._parts = [self._enforced(_loaded(text))]
            self.schema = _loaded(text)
        elif kind in ("lark", "tool_calls"):
            self._parts = list(self._split(text))
            if not can_end("".join(part if isinstance(part, str) else ' "" ' for part in self._parts)):
                raise ValueError("no text that follows it ever ends")
        else:
            self._parts = [text]

    def library_text(self) -> str:
        """What the library reads."""
        from llguidance import LLMatcher

        text = "".join(part if isinstance(part, str) else json.dumps(_plain(part)) for part in self._parts)
        match self._kind:
            case "json_schema":
                # No free spaces: small models go on with them for ever.
                return LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_flexible": False})
            case "regex":
                return LLMatcher.grammar_from_regex(text)
            case "choice":
                quoted = [json.dumps(each, ensure_ascii=False) for each in json.loads(text)]
                return LLMatcher.grammar_from_lark("start: " + " | ".join(quoted))
        return LLMatcher.grammar_from_lark(text)

    def note(self, warnings: Iterable[str]) -> None:
        """What the library leaves out besides. An answer is then compared with what is enforced."""
        for warning in warnings:
            self.left_out.append(_WARNINGS.get(warning.split()[0], warning))
        if not self.left_out or self.schema is None:
            return
        (self.schema,) = self._parts
        for part in _objects(self.schema):
            if isinstance(part.get("oneOf"), list) and _WARNINGS["oneOf"] in self.left_out:
                _choose_any(part)
            if _WARNINGS[_COUNTS] in self.left_out:
                part.pop("minProperties", None)
                part.pop("maxProperties", None)

    def weaken(self, reason: str) -> bool:
        """Leave more out of lenient schemas, which the library refuses for a reason; whether there was more."""
        if _UNSOUND.search(reason):
            return False
        with_patterns = [each for schema in self._lenient for each in _objects(schema) if each.get(_KEYS[0])]
        if with_patterns:
            self.left_out.append(f"'{_KEYS[0]}' ({reason})")
            for each in with_patterns:
                for name in _KEYS:
                    each.pop(name, None)
            return True
        rich = [schema for schema in self._lenient if schema.keys() - {"type", _OPTIONS}]
        for schema in rich:
            kept = {name: schema[name] for name in ("type", _OPTIONS) if name in schema}
            schema.clear()
            schema.update(kept)
        if rich:
            self.left_out.append(f"all but its type ({reason})")
        return bool(rich)

    def _enforced(self, schema: Any) -> Any:
        self.has_key_patterns = self.has_key_patterns or any(each.get(_KEYS[0]) for each in _objects(schema))
        options = _sound_options(schema.pop(_OPTIONS, None)) if isinstance(schema, dict) else {}
        if options:
            schema[_OPTIONS] = options
        is_lenient = options.get("lenient") is True
        note = self.left_out.append if is_lenient else _refuse
        with_choices = [each for each in _objects(schema) if isinstance(each.get("oneOf"), list)]
        if with_choices and not _are_choices_apart(schema):
            note(_WARNINGS["oneOf"])
            for each in with_choices:
                _choose_any(each)
        enforced = EnforcedSchema(schema, note, _is_readable if is_lenient else lambda pattern: True)
        if not enforced.can_end:
            raise ValueError("it allows nothing: no text that follows it ever ends")
        self.is_open = self.is_open or enforced.is_open
        self._lenient += [schema] if is_lenient else []
        return schema

    def _split(self, text: str) -> Iterator[Any]:
        """A Lark grammar's text, and the schemas in it."""
        place = 0
        while (found := _IN_LARK.search(text, place)) is not None:
            yield text[place : found.end()]
            try:
                _, place = json.JSONDecoder().raw_decode(text, found.end())
            except ValueError:  # the library tells what is wrong
                place = found.end()
            else:
                yield self._enforced(_loaded(text[found.end() : place]))
        yield text[place:]


def _loaded(text: str) -> Any:
    return json.loads(text, parse_float=number)


def _refuse(words: str) -> None:
    raise ValueError(f"{words} is not supported")


def _is_readable(pattern: str) -> bool:
    """Whether the library reads a pattern of a JSON schema; one that nothing follows is read."""
    from llguidance import LLMatcher

    schema = json.dumps({"type": "string", "pattern": pattern})
    error = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))
    return not error or "Unsatisfiable" in error


def _are_choices_apart(schema: Schema) -> bool:
    """Whether no value is of two choices of a `oneOf`, as they were given: closed objects would differ more."""
    from llguidance import LLMatcher

    given = copy.deepcopy(schema)
    EnforcedSchema(given, lambda words: None, _is_readable, closes=False)
    text = json.dumps(_plain(given | {_OPTIONS: {"lenient": True}}))
    is_wrong, words = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_json_schema(text))
    if is_wrong:
        return "Unsatisfiable" in words[0]  # which has a sentence of its own
    return not any(warning.startswith("oneOf") for warning in words)


def _choose_any(part: Schema) -> None:
    """`anyOf` in place of `oneOf`."""
    choices = {"anyOf": part.pop("oneOf")}
    if "anyOf" in part:
        part["allOf"] = [*part.get("allOf", []), choices]
    else:
        part.update(choices)


def _sound_options(given: Any) -> Schema:
    """Of the options that came with a schema, those with which an answer is still JSON that follows it."""
    options = given if isinstance(given, dict) else {}
    found = {name: options[name] for name in ("lenient", "whitespace_flexible") if isinstance(options.get(name), bool)}
    marks = {"item_separator": ",", "key_separator": ":"}
    return found | {name: options[name] for name, mark in marks.items() if str(options.get(name)).strip(" ") == mark}


def _objects(part: Any) -> Iterator[dict[str, Any]]:
    left = [part]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
        left += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()


def _plain(part: Any) -> Any:
    """A schema whose numbers JSON can write."""
    if isinstance(part, Decimal):
        value = number(str(part)) if part.is_finite() else part
        return value if isinstance(value, int) else float(value) if abs(value) < sys.float_info.max else str(value)
    if isinstance(part, list):
        return [_plain(each) for each in part]
    return {name: _plain(each) for name, each in part.items()} if isinstance(part, dict) else part

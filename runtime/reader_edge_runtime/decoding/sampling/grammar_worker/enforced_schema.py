"""A JSON schema as llguidance can follow it, so that an answer that follows it satisfies the schema that was given.

Changed in place: what the library would enforce otherwise than the standard is written in other words, narrowed, or
left out, which is noted. Objects that list their properties are closed unless they say what further ones may be: so no
key comes under two spellings.
"""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import quote, unquote

from .enforced_keys import KEY_ESCAPES, enforce_few_keys
from .enforced_numbers import enforce_numbers, is_exact, shown
from .enforced_texts import enforce_texts, is_enforced, rust_pattern

Schema = dict[str, Any]
Note = Callable[[str], None]  # gets what cannot be enforced

_DEFINITIONS = ("$defs", "definitions")
_MAPS = (*_DEFINITIONS, "properties", "patternProperties")
_IN_PLACE = ("allOf", "anyOf", "oneOf")  # as $ref: what they ask for, they ask of the same value
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_ENDLESS = 10_000_000  # characters or items, which no answer has
# What a schema asks of a value beside its type, as far as the library follows it.
_RULES = frozenset(
    {
        *("$ref", "allOf", "anyOf", "const", "enum", "oneOf"),
        *("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"),
        *("format", "maxLength", "minLength", "pattern"),
        *("additionalItems", "items", "maxItems", "minItems", "prefixItems"),
        *("additionalProperties", "maxProperties", "minProperties", "patternProperties", "properties", "required"),
    }
)
# Keywords that the library does not follow, with what they ask for nothing with.
_UNFOLLOWED: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(
        ("$dynamicRef", "$recursiveRef", "contains", "else", "if", "maxContains", "minContains", "then"), ()
    ),
    **dict.fromkeys(("propertyNames", "unevaluatedItems", "unevaluatedProperties"), (True, {})),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), ({},)),
    **dict.fromkeys(("not", "uniqueItems"), (False,)),
}


class EnforcedSchema:
    """root: the schema, changed in place. can_end: whether a text of finite length can follow it.

    closes: whether objects that list their properties are closed. is_open: whether there may be objects with keys that
    are not listed.
    """

    def __init__(self, root: Any, note: Note, is_readable: Callable[[str], bool], closes: bool = True) -> None:
        self.root = root
        self._closes = closes
        self.is_open = not isinstance(root, dict)
        self._has_further_keys = False  # beside listed ones, or patterns
        self._note = note
        self._is_readable = is_readable
        self._anchors: dict[str, Any] | None = None
        self._alone: dict[int, Schema] = {}
        self._joined: dict[int, Schema] = {}  # for whose values something else holds, too
        self._targets: dict[int, Any] = {}  # by the identity of the schema with the reference
        self._find(root)
        for schema in {**self._alone, **self._joined}.values():
            self._enforce(schema)
        self.can_end = self._prune()
        options = root.setdefault("x-guidance", {}) if self._has_further_keys and isinstance(root, dict) else None
        if isinstance(options, dict):  # a listed key could otherwise come as a further one, a letter of it escaped
            options["json_allowed_escapes"] = KEY_ESCAPES

    def _find(self, root: Any) -> None:
        """Sort the schemas by whether something else holds for the same values."""
        left = [(root, False)]
        while left:
            schema, is_joined = left.pop()
            found = self._joined if is_joined else self._alone
            if not isinstance(schema, dict) or id(schema) in self._joined or id(schema) in found:
                continue
            found[id(schema)] = schema
            num_rules = len(_RULES & schema.keys())
            has_both = bool(schema.get("properties")) and bool(schema.get("patternProperties"))
            for name, part in _parts(schema):
                is_in_place = name in _IN_PLACE and (num_rules > 1 or (name == "allOf" and len(schema[name]) > 1))
                of_keys = name in ("properties", "patternProperties") and has_both
                left.append((part, (is_joined and name not in _DEFINITIONS) or is_in_place or of_keys))
            if isinstance(schema.get("$ref"), str):
                target = self._resolved(schema["$ref"])
                self._targets[id(schema)] = target
                left.append((target, is_joined or num_rules > 1))

    def _resolved(self, reference: str) -> Any:
        """What a reference within this document names; None where it names nothing there."""
        if not reference.startswith("#"):
            return None
        if reference[1:2] not in ("", "/"):
            return self._anchored().get(reference[1:])
        found: Any = self.root
        for step in unquote(reference.removesuffix("/")).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = dict(enumerate(found)).get(int(step)) if step.isdecimal() and len(step) < 9 else None
            else:
                found = found.get(step) if isinstance(found, dict) else None
        return found

    def _anchored(self) -> dict[str, Any]:
        if self._anchors is None:
            self._anchors, left = {}, [self.root]
            while left:
                part = left.pop()
                if isinstance(part, dict):
                    names = [part.get("$anchor"), *(str(part.get(name, ""))[1:] for name in ("$id", "id"))]
                    self._anchors |= {name: part for name in names if isinstance(name, str) and name}
                left += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        return self._anchors

    def _enforce(self, schema: Schema) -> None:
        if id(schema) in self._targets and self._targets[id(schema)] is None:
            self._note(f"'$ref' to {schema.pop('$ref')!r:.80}")
        elif id(schema) in self._targets:
            schema["$ref"] = quote(schema["$ref"], safe="#%/~!$&'()*+,;=:@?")
        for name in _COUNTS:
            count = schema.get(name)
            if isinstance(count, int | Decimal) and not isinstance(count, bool):
                if name.startswith("max") and count > _ENDLESS:
                    del schema[name]
                elif count <= 2 * _ENDLESS and count == int(count):
                    schema[name] = int(count)
        self._enforce_values(schema)
        enforce_numbers(schema, self._note)
        enforce_texts(schema, self._note, self._is_readable)
        self._enforce_keys(schema)
        self._enforce_object(schema)
        for name in _UNFOLLOWED.keys() & schema.keys():
            value = schema.pop(name)
            if not any(type(value) is type(nothing) and value == nothing for nothing in _UNFOLLOWED[name]):
                self._note(repr(name))

    def _enforce_keys(self, schema: Schema) -> None:
        """Patterns of keys."""
        patterns = schema.get("patternProperties")
        if not isinstance(patterns, dict):
            return
        schema["patternProperties"] = rust = {rust_pattern(pattern): part for pattern, part in patterns.items()}
        for pattern in [pattern for pattern in rust if not is_enforced(pattern, self._is_readable)]:
            self._note(f"'patternProperties' {pattern!r:.80}")
            del rust[pattern]
            for name in ("additionalProperties", "unevaluatedProperties"):  # which rule what no pattern names
                schema.pop(name, None)

    def _enforce_values(self, schema: Schema) -> None:
        if "const" in schema and not is_exact(schema["const"]):
            self._leave_out_numbers(schema, "const", [schema["const"]])
        values = schema.get("enum")
        if isinstance(values, list) and not all(map(is_exact, values)):
            self._leave_out_numbers(schema, "enum", values)

    def _leave_out_numbers(self, schema: Schema, name: str, values: list[Any]) -> None:
        """Of listed values, those that are exact are left; where none is, their type."""
        exact = [value for value in values if is_exact(value)]
        wrong = next(value for value in values if not is_exact(value))
        self._note(f"the number {shown(wrong)} in '{name}'")
        del schema[name]
        if exact:
            schema["enum"] = exact
        elif all(isinstance(value, int) for value in values):
            schema.setdefault("type", "integer")

    def _enforce_object(self, schema: Schema) -> None:
        kinds = _kinds(schema) or ["array", "object"]
        if any(part is True for _, part in _parts(schema)) or ("array" in _kinds(schema) and "items" not in schema):
            self.is_open = True
        is_plain = not any(name in schema for name in (*_IN_PLACE, "$ref"))
        properties, patterns = schema.get("properties"), schema.get("patternProperties")
        if "object" not in kinds or "enum" in schema or "const" in schema:
            return
        if "type" not in schema and not is_plain and properties is None and patterns is None:
            return  # the others say it
        is_alone = is_plain and id(schema) not in self._joined
        if is_alone and "additionalProperties" not in schema and "unevaluatedProperties" in schema:
            schema["additionalProperties"] = schema.pop("unevaluatedProperties")
        listed = {**properties} if isinstance(properties, dict) else {}
        unlisted = [key for key in _items(schema.get("required")) if isinstance(key, str) and key not in listed]
        listed |= {key: {} for key in unlisted}
        if is_alone and self._closes and (properties or patterns) and "additionalProperties" not in schema:
            least = schema.get("minProperties", 0)
            if patterns or not isinstance(least, int) or least <= len(listed):
                schema["properties"], schema["additionalProperties"] = listed, False
        if schema.get("additionalProperties") == {"enum": []}:
            schema["additionalProperties"] = False
        has_further = schema.get("additionalProperties") is not False
        self.is_open = self.is_open or has_further or bool(patterns or unlisted)
        self._has_further_keys = self._has_further_keys or bool(patterns) or (has_further and bool(listed))
        if isinstance(patterns, dict) and patterns and not has_further:
            enforce_few_keys(schema, self._note)

    def _prune(self) -> bool:
        """Make what no text of finite length follows allow nothing; whether the whole can end."""
        schemas = list({**self._alone, **self._joined}.values())[::-1]  # parts before what is made of them
        endless = {id(schema) for schema in schemas}

        def ends(part: Any) -> bool:
            return part is not False and id(part) not in endless

        size = len(endless) + 1
        while len(endless) < size:
            size = len(endless)
            for schema in schemas:
                if id(schema) in endless and self._ends(schema, ends):
                    endless.remove(id(schema))
        for schema in schemas:
            if id(schema) in endless:
                schema.clear()
                schema["enum"] = []
        return self.root is not False and id(self.root) not in endless

    def _ends(self, schema: Schema, ends: Callable[[Any], bool]) -> bool:
        """Whether a finite text follows a schema, as far as is known of its parts."""
        if "const" in schema or "enum" in schema:
            return schema.get("enum") != []
        if not ends(self._targets.get(id(schema), True)) or not all(map(ends, _items(schema.get("allOf")))):
            return False
        for name in ("anyOf", "oneOf"):
            if isinstance(schema.get(name), list) and not any(map(ends, schema[name])):
                return False
        is_bounded = {"array": _array_ends, "object": _object_ends}
        return any(kind not in is_bounded or is_bounded[kind](schema, ends) for kind in _kinds(schema) or ["null"])


def _array_ends(schema: Schema, ends: Callable[[Any], bool]) -> bool:
    least, items = schema.get("minItems"), schema.get("items", True)
    if not isinstance(least, int) or least < 1:
        return True
    first = items if isinstance(items, list) else _items(schema.get("prefixItems"))
    others = schema.get("additionalItems", True) if isinstance(items, list) else items
    return all(map(ends, first[:least])) and (least <= len(first) or ends(others))


def _object_ends(schema: Schema, ends: Callable[[Any], bool]) -> bool:
    properties, required = schema.get("properties"), _items(schema.get("required"))
    listed = properties if isinstance(properties, dict) else {}
    others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
    return all(ends(listed.get(key, others)) for key in required if isinstance(key, str))


def _kinds(schema: Schema) -> list[str]:
    """The types that a schema lists."""
    kinds = schema.get("type")
    return [kinds] if isinstance(kinds, str) else [kind for kind in _items(kinds) if isinstance(kind, str)]


def _parts(schema: Schema) -> Iterator[tuple[str, Any]]:
    """The schemas in a schema, with the keyword that each is below; definitions first, for they are looked at last."""
    for name in _MAPS:
        if isinstance(schema.get(name), dict):
            yield from ((name, part) for part in schema[name].values())
    for name in ("additionalProperties", "items", "additionalItems"):
        if isinstance(schema.get(name), dict | bool):
            yield name, schema[name]
    for name in ("allOf", "anyOf", "oneOf", "prefixItems", "items"):
        yield from ((name, part) for part in _items(schema.get(name)))


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []

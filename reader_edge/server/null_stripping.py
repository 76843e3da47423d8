"""Values of JSON made ready for their class, in place: what has no effect taken out, missing tags put in."""

import math
from collections.abc import Callable
from typing import Any

from msgspec import inspect

from reader_edge.server.ignored_fields import LeftOut

ARRAYS = (inspect.ListType, inspect.VarTupleType)

Strip = Callable[[Any, LeftOut], None]


class NullStripper:
    """Takes nulls, ignored and unknown fields out of an object of one of these classes, which its tag decides on."""

    def __init__(self, classes: list[inspect.StructType]) -> None:
        self._tag_field, self._first_tag = classes[0].tag_field, classes[0].tag
        self._strippers = {
            each.tag: {part.encode_name: strip for part in each.fields if (strip := stripper_of(part.type))}
            for each in classes
        }
        self._ignored = {
            each.tag: frozenset(part.encode_name for part in each.fields if _is_ignored(part.type)) for each in classes
        }
        self._used = {
            each.tag: frozenset({each.tag_field, *(part.encode_name for part in each.fields)}) - self._ignored[each.tag]
            for each in classes
        }

    def __call__(self, value: dict[str, Any], left_out: LeftOut) -> None:
        tag = None
        if self._tag_field is not None:
            tag = value.get(self._tag_field)
            if tag is None:
                tag = value[self._tag_field] = self._first_tag
        if not isinstance(tag, str | None) or tag not in self._ignored:
            return
        ignored, used, strippers = self._ignored[tag], self._used[tag], self._strippers[tag]
        for name in [name for name, each in value.items() if each is None or name not in used]:
            if value[name] is None or left_out.take(name, name in ignored):
                del value[name]
        for name, strip in strippers.items():
            if name in value:
                strip(value[name], left_out)


def _is_ignored(info: inspect.Type) -> bool:
    return isinstance(info, inspect.Metadata) and bool((info.extra or {}).get("is_ignored"))


def stripper_of(info: inspect.Type) -> Strip | None:
    """What takes nulls out of a value of this type, in place; None where there are no objects in it."""
    types = alternatives(info)
    classes = [each for each in types if isinstance(each, inspect.StructType)]
    array = next((each for each in types if isinstance(each, ARRAYS)), None)
    of_object = NullStripper(classes) if classes else None
    of_item = None if array is None else stripper_of(array.item_type)
    if of_object is None and of_item is None:
        return None
    most = math.inf if array is None or array.max_length is None else array.max_length
    leaves_out, ignored_types = _ignored_types(info)
    known = frozenset(getattr(each, "tag", None) for each in (alternatives(array.item_type) if array else ()))

    def strip(value: Any, left_out: LeftOut) -> None:
        if of_object is not None and isinstance(value, dict):
            of_object(value, left_out)
        elif of_item is not None and isinstance(value, list) and len(value) <= most:
            if leaves_out:
                left_out.take_items(value, known, ignored_types)
            for each in value:
                of_item(each, left_out)

    return strip


def _ignored_types(info: inspect.Type) -> tuple[bool, frozenset[str] | None]:
    """Whether a list leaves items out, and of which types; None: of all that its classes are not."""
    if isinstance(info, inspect.UnionType):
        return next((found for each in info.types if (found := _ignored_types(each))[0]), (False, None))
    if not isinstance(info, inspect.Metadata):
        return False, None
    extra = info.extra or {}
    return (True, extra["ignored_types"]) if "ignored_types" in extra else _ignored_types(info.type)


def alternatives(info: inspect.Type) -> list[inspect.Type]:
    """The types of a union; one type otherwise."""
    if isinstance(info, inspect.Metadata):
        return alternatives(info.type)
    if isinstance(info, inspect.UnionType):
        return [each for part in info.types for each in alternatives(part)]
    return [info]

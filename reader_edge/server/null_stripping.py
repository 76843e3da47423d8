"""Values of JSON made ready for their class, in place: nulls and ignored fields taken out, missing tags put in."""

import math
from collections.abc import Callable
from typing import Any

from msgspec import inspect

ARRAYS = (inspect.ListType, inspect.VarTupleType)

Strip = Callable[[Any], None]


class NullStripper:
    """Takes nulls and ignored fields out of an object of one of these classes, which its tag decides on."""

    def __init__(self, classes: list[inspect.StructType]) -> None:
        self._tag_field, self._first_tag = classes[0].tag_field, classes[0].tag
        self._strippers = {
            each.tag: {part.encode_name: strip for part in each.fields if (strip := stripper_of(part.type))}
            for each in classes
        }
        self._ignored = {
            each.tag: frozenset(part.encode_name for part in each.fields if _is_ignored(part.type)) for each in classes
        }

    def __call__(self, value: dict[str, Any]) -> None:
        tag = None
        if self._tag_field is not None:
            tag = value.get(self._tag_field)
            if tag is None:
                tag = value[self._tag_field] = self._first_tag
        if not isinstance(tag, str | None) or tag not in self._ignored:
            return
        ignored, strippers = self._ignored[tag], self._strippers[tag]
        for name in [name for name, each in value.items() if each is None or name in ignored]:
            del value[name]
        for name, strip in strippers.items():
            if name in value:
                strip(value[name])


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

    def strip(value: Any) -> None:
        if of_object is not None and isinstance(value, dict):
            of_object(value)
        elif of_item is not None and isinstance(value, list) and len(value) <= most:
            for each in value:
                of_item(each)

    return strip


def alternatives(info: inspect.Type) -> list[inspect.Type]:
    """The types of a union; one type otherwise."""
    if isinstance(info, inspect.Metadata):
        return alternatives(info.type)
    if isinstance(info, inspect.UnionType):
        return [each for part in info.types for each in alternatives(part)]
    return [info]

"""Values of JSON made ready for their class, in place: nulls and ignored fields taken out, unknown ones refused."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import inspect

ARRAYS = (inspect.ListType, inspect.VarTupleType)

Strip = Callable[[Any], None]


class FieldError(Exception):
    """A field that its class does not have, or that may not say this value. place: within what was looked at."""

    def __init__(self, place: str, value: object, is_unknown: bool) -> None:
        super().__init__(place)
        self.place = place
        self.value = value
        self.is_unknown = is_unknown

    def within(self, name: str) -> "FieldError":
        """The same error, its place as seen from the object around."""
        joint = "" if self.place[:1] in ("", "[") else "."
        return FieldError(f"{name}{joint}{self.place}", self.value, self.is_unknown)


class NullStripper:
    """Takes nulls and ignored fields out of an object of one of these classes, which its tag decides on.

    It adds a tag that is missing. Raises FieldError for a field that the class does not have, which msgspec would tell
    without its whole name.
    """

    def __init__(self, classes: list[inspect.StructType]) -> None:
        self._tag_field, self._first_tag = classes[0].tag_field, classes[0].tag
        self._fields = {
            each.tag: {part.encode_name: _stripper_of(part.type) for part in each.fields} for each in classes
        }
        self._ignored = {
            each.tag: frozenset(part.encode_name for part in each.fields if _is_ignored(part.type)) for each in classes
        }
        if self._tag_field is not None:
            for fields in self._fields.values():
                fields[self._tag_field] = None

    def __call__(self, value: Any) -> None:
        if not isinstance(value, dict):
            return
        tag = None
        if self._tag_field is not None:
            tag = value.get(self._tag_field)
            if tag is None:
                tag = value[self._tag_field] = self._first_tag
        fields = self._fields.get(tag) if isinstance(tag, str | None) else None
        if fields is None:
            return
        ignored = self._ignored[tag]
        for name in [name for name, each in value.items() if each is None or name in ignored]:
            del value[name]
        for name, each in value.items():
            if name not in fields:
                raise FieldError(name, each, is_unknown=True)
            strip = fields[name]
            if strip is not None:
                _strip_within(name, strip, each)


def _is_ignored(info: inspect.Type) -> bool:
    return isinstance(info, inspect.Metadata) and bool((info.extra or {}).get("is_ignored"))


def _stripper_of(info: inspect.Type) -> Strip | None:
    """What takes nulls out of a value of this type, in place; None where there are no objects in it."""
    extra = (info.extra or {}) if isinstance(info, inspect.Metadata) else {}
    if "only" in extra:
        return partial(_check_flag, extra["only"])
    types = alternatives(info)
    classes = [each for each in types if isinstance(each, inspect.StructType)]
    array = next((each for each in types if isinstance(each, ARRAYS)), None)
    of_object = NullStripper(classes) if classes else None
    of_item = None if array is None else _stripper_of(array.item_type)
    if of_object is None and of_item is None:
        return None
    most = math.inf if array is None or array.max_length is None else array.max_length

    def strip(value: Any) -> None:
        if of_object is not None and isinstance(value, dict):
            of_object(value)
        elif of_item is not None and isinstance(value, list) and len(value) <= most:
            for number, each in enumerate(value):
                _strip_within(number, of_item, each)

    return strip


def _strip_within(name: str | int, strip: Strip, value: Any) -> None:
    """Raises FieldError with the place as seen from outside. name: of a field, or number of an item."""
    try:
        strip(value)
    except FieldError as error:
        raise error.within(name if isinstance(name, str) else f"[{name}]") from None


def _check_flag(only: bool, value: Any) -> None:
    if isinstance(value, bool) and value is not only:
        raise FieldError("", value, is_unknown=False)


def alternatives(info: inspect.Type) -> list[inspect.Type]:
    """The types of a union; one type otherwise."""
    if isinstance(info, inspect.Metadata):
        return alternatives(info.type)
    if isinstance(info, inspect.UnionType):
        return [each for part in info.types for each in alternatives(part)]
    return [info]

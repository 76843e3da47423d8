"""The contract of requests: one class per JSON object, from which decoding, bounds and refusals come.

A class states its fields, their types and their bounds once. The OpenAPI document and the tests' cases come from the
same classes.
"""

import gc
import math
import re
from abc import ABCMeta
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Annotated, Any, ClassVar, Self, TypeVar, dataclass_transform, get_args

import msgspec
from msgspec import Meta, inspect, structs

from reader_edge.server.api_error import ApiError, shown_json, withheld_json, wrong_value
from reader_edge.server.ignored_fields import LeftOut
from reader_edge.server.null_stripping import ARRAYS, Strip, alternatives, stripper_of
from reader_edge_runtime.untrusted.config_checks import Range

Kind = TypeVar("Kind", bound=msgspec.Struct)

# Marks of fields: what is taken for other systems' sake and changes nothing, and what may only ask for nothing.
IGNORED = Meta(extra={"is_ignored": True}, description="Accepted, counted, and without effect.")
UNSUPPORTED = Meta(extra={"is_unsupported": True})

_MAX_SHOWN = 40  # items of a list in a refusal, of which fewer fit
_MAX_NAME = 100  # characters of a name in a refusal
_UNKNOWN = "Object contains unknown field"
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def only(value: bool) -> Meta:
    """Marks a flag that may say nothing else."""
    return Meta(extra={"is_unsupported": True, "only": value}, extra_json_schema={"const": value})


def ignoring_types(known: str, ignored: str | None = None) -> Meta:
    """Marks a list that leaves out the items of some types: those that are named, or all that are not known."""
    types = {"enum": ignored.split()} if ignored else {"not": {"enum": known.split()}}
    other = {"type": "object", "properties": {"type": {"type": "string", **types}}, "required": ["type"]}
    extra = {"ignored_types": frozenset(ignored.split()) if ignored else None}
    return Meta(extra=extra, extra_json_schema={"items": {"anyOf": [other]}})


class _Strict(msgspec.StructMeta, ABCMeta):
    """The options that all classes of the contract share. ABCMeta: shared bodies have abstract members."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        members: dict[str, Any],
        ignored: str = "",
        refused: str = "",
        **options: Any,
    ) -> "_Strict":
        options |= {"forbid_unknown_fields": True, "frozen": True, "kw_only": True}
        fields = dict.fromkeys(ignored.split(), Annotated[Any, IGNORED])
        fields |= dict.fromkeys(refused.split(), Annotated[None, UNSUPPORTED])
        if fields:  # in a class between, since annotations are evaluated late from Python 3.14 on
            between = {"__module__": members["__module__"], "__annotations__": fields, **dict.fromkeys(fields)}
            bases = (super().__new__(mcls, f"_{name}", bases, between, **options),)
        return super().__new__(mcls, name, bases, members, **options)


@dataclass_transform(kw_only_default=True)
class JsonObject(msgspec.Struct, metaclass=_Strict):
    """An object of a request. A field that is null is as good as one left out; so is an unknown one, which is counted.

    ignored: option of a class, names of fields that are taken for other systems' sake and change nothing.
    refused: the same of fields that would change the answer, and are only null here.
    read_once: names of fields of which nothing is needed once a request was understood.
    """

    read_once: ClassVar[tuple[str, ...]] = ()

    def thought_fields(self) -> Sequence[str]:
        """Names of its fields that say how much is thought, which have no effect where the model does not think."""
        return ()

    def kept(self) -> Self:
        """The same without what was read once, which may be large, for as long as the answer takes."""
        return structs.replace(self, **dict.fromkeys(self.read_once))


def within(config: type, name: str) -> Meta:
    """The bounds that a config of the runtime states for one of its fields."""
    return bounds(get_args(config.__dataclass_fields__[name].type)[1])  # type: ignore[attr-defined]


def bounds(allowed: Range) -> Meta:
    """A range of the runtime, as a bound of a field."""
    most = None if allowed.most == math.inf else allowed.most
    description = f"a number {allowed.words}" if allowed.words else None
    return Meta(ge=allowed.least, le=most, description=description)


def decode(values: object, kind: type[Kind], left_out: LeftOut | None = None) -> Kind:
    """An object of this class from values that JSON was read into, which lose their nulls and what has no effect.

    left_out: gets the names of fields without effect. Raises ApiError with one sentence.
    """
    info, strip, flags = _type_info(kind)
    left_out = left_out or LeftOut()
    with without_gc():
        try:
            strip(values, left_out)
            if left_out.refused == "all" and left_out.ignored:
                raise without_effect(next(iter(left_out.ignored)))
            decoded = msgspec.convert(values, kind)
        except msgspec.ValidationError as error:
            raise _refusal(str(error), values, info) from None
        except UnicodeEncodeError:
            if name := _unknown_name(values, info):
                raise _unknown(name) from None
            raise ApiError(400, "The body holds half a character where a name is expected: correct it.") from None
    for name, only in flags.items():
        if getattr(decoded, name) is not only:
            raise _unsupported(name, not only)
    return decoded


@contextmanager
def without_gc() -> Iterator[None]:
    """Not while JSON is read: the collector would go through a million lists again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def _type_info(kind: type[msgspec.Struct]) -> tuple[inspect.StructType, Strip, dict[str, bool]]:
    """A class, what strips its objects, and its flags that may say one thing alone."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    strip = stripper_of(info)
    assert strip is not None
    extras = {field.name: getattr(field.type, "extra", None) or {} for field in info.fields}
    return info, strip, {name: extra["only"] for name, extra in extras.items() if "only" in extra}


def _meant(value: object, info: inspect.Type) -> inspect.Type | None:
    """The one type of a union that a value of this JSON type can have; an object's tag decides between classes.

    An object without a tag is one of the first class. None where no type fits.
    """
    types = alternatives(info)
    if isinstance(value, list):
        return next((each for each in types if isinstance(each, ARRAYS)), None)
    if not isinstance(value, dict):
        return None
    objects = [each for each in types if isinstance(each, inspect.StructType)]
    tags = [value.get(each.tag_field) if each.tag_field else None for each in objects]
    fitting = [each for each, tag in zip(objects, tags, strict=True) if tag is None or tag == each.tag]
    return next(iter(fitting), None) or next((each for each in types if isinstance(each, inspect.DictType)), None)


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _refusal(error: str, value: object, info: inspect.Type) -> ApiError:
    """What a client gets in place of msgspec's words, which name neither the value nor all that is allowed."""
    path = error.rpartition(" - at `$")[2].removesuffix("`") if " - at `$" in error else ""
    missing = _MISSING.match(error)
    place, types = "", [info]
    for name, index in _STEP.findall(path + (f".{missing[1]}" if missing else "")):
        kind = _meant(value, types[-1])
        if isinstance(kind, ARRAYS) and isinstance(value, list) and int(index or -1) < len(value):
            value, place = value[int(index)], f"{place}[{index}]"
            types.append(kind.item_type)
        elif isinstance(value, dict):
            value, place = value.get(name), _joined(place, name)
            types.append(_field_type(kind, types[-1], name))
    if error.startswith(_UNKNOWN):
        return _unknown(_joined(place, _unknown_name(value, types[-1])))
    if any(isinstance(each, inspect.Metadata) and (each.extra or {}).get("is_unsupported") for each in types):
        return _unsupported(place, value)
    if not place:
        return ApiError(400, "The body is no JSON object: send one.", code="invalid_json")
    is_missing = value is None
    if isinstance(value, list):
        value = value[:_MAX_SHOWN]
    elif isinstance(value, dict):
        value = dict(islice(value.items(), _MAX_SHOWN))
    return wrong_value(place, value, words_of(types[-1]), place, None if is_missing else "invalid_value")


def _unknown_name(value: object, info: inspect.Type) -> str:
    """The first field of an object that its class does not have."""
    kind = _meant(value, info)
    fields = kind.fields if isinstance(kind, inspect.StructType) else ()
    known = {getattr(kind, "tag_field", None), *(field.encode_name for field in fields)}
    return next((name for name in value if name not in known), "") if isinstance(value, dict) else ""


def _unknown(place: str) -> ApiError:
    place = place[:_MAX_NAME]
    public = "There is no field of this name: leave it out."
    return ApiError(400, f"There is no field {place!r}: leave it out.", place, "unknown_parameter", public)


def without_effect(name: str) -> ApiError:
    """What a strict server refuses a field with."""
    sentence = f"'{name}' has no effect here, and this server refuses such fields: leave it out."
    return ApiError(400, sentence, name, "unsupported_parameter")


def _unsupported(place: str, value: object) -> ApiError:
    rest = "which is not supported here: leave it out."
    public = f"'{place}' is {withheld_json(value)}, {rest}"
    return ApiError(400, f"'{place}' is {shown_json(value)}, {rest}", place, "unsupported_parameter", public)


def _field_type(kind: inspect.Type | None, info: inspect.Type, name: str) -> inspect.Type:
    """The type of an object's field; where it is the tag that fits no class, that of all tags."""
    if isinstance(kind, inspect.StructType):
        for field in kind.fields:
            if field.encode_name == name:
                return field.type
    tags = [each.tag for each in alternatives(info) if isinstance(each, inspect.StructType) and each.tag is not None]
    return inspect.LiteralType(tuple(tags))


def words_of(info: inspect.Type) -> str:
    """What a value must be, as a refusal says it."""
    match info:
        case inspect.Metadata():
            return str((info.extra_json_schema or {}).get("description") or words_of(info.type))
        case inspect.UnionType():
            kinds = [each for each in info.types if not isinstance(each, inspect.NoneType)]
            return " or ".join(dict.fromkeys(map(words_of, kinds)))
        case inspect.IntType():
            return "a whole number" + _range(info.ge, info.le)
        case inspect.FloatType():
            return "a number" + _range(info.ge, info.le)
        case inspect.StrType():
            return "a text" + _range(info.min_length, info.max_length, " characters")
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return ("one of " if len(info.values) > 1 else "") + ", ".join(map(repr, info.values))
        case inspect.ListType() | inspect.VarTupleType():
            return "a list" + _range(info.min_length, info.max_length, " items")
        case inspect.StructType():
            names = [info.tag_field] if info.tag_field else []
            names += [field.encode_name for field in info.fields if field.required]
            return "an object" + (" with " + " and ".join(f"'{name}'" for name in names) if names else "")
    return "an object"


def _range(least: float | None, most: float | None, unit: str = "") -> str:
    if most is not None:
        return f" of {least or 0} to {most}{unit}" if unit else f" from {least} to {most}"
    return f" of {least} or more{unit}" if least is not None else ""

"""Checks a finished answer against its JSON schema with the library jsonschema."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

from .enforced_texts import python_pattern

_MOST_DIGITS = 400  # of a whole number with an exponent
_LARGEST = Decimal(sys.float_info.max)


def problem_of(schema: Any, text: str) -> str:
    """What an answer says that its schema does not allow, without the answer's words; "" where all is well.

    Numbers that readers take for infinity are never allowed.

    Raises ImportError where the validator is missing, and whatever it raises for a schema that it cannot read.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend, validator_for
    from jsonschema_specifications import REGISTRY  # which fetches nothing

    try:
        value = json.loads(text, parse_float=_finite, object_pairs_hook=_once)
    except ValueError as error:
        return f"it is no JSON that every reader takes ({str(error).partition(':')[0]})"
    kind = validator_for(schema, default=Draft202012Validator)
    validator = extend(kind, {"pattern": _pattern})(schema, registry=REGISTRY, format_checker=kind.FORMAT_CHECKER)
    with localcontext(prec=1000):
        found = next(validator.iter_errors(value), None)
    if found is None:
        return ""
    return f"{found.validator!r} at #/{'/'.join(map(str, found.absolute_schema_path))} does not hold"


def number(text: str) -> int | Decimal:
    """A number of JSON with a point or an exponent, with all its digits. Raises ValueError where it is out of reach."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"the exponent of {text:.20}{text[20:] and '...'} is out of reach") from None
    return int(value) if value.adjusted() < _MOST_DIGITS and value == value.to_integral_value() else value


def _finite(text: str) -> int | Decimal:
    value = number(text)
    if abs(Decimal(value)) > _LARGEST:
        raise ValueError("a number is no float of 64 bits")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    with contextlib.suppress(re.error):  # which Python does not read
        if validator.is_type(value, "string") and not re.search(python_pattern(pattern), value):
            yield ValidationError("does not match")

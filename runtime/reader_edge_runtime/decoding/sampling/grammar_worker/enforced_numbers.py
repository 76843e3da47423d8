"""Numbers of a JSON schema as llguidance enforces them exactly: it reads every number as a float of 64 bits.

Its own texts of floats are the given ones up to 15 digits. A bound that is none of these numbers is moved inside to the
next one, so that every number within it is within the given bound, too.
"""

from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from typing import Any

from .unique_keys import LINE_BREAK, KeyTokens

Schema = dict[str, Any]
Note = Callable[[str], None]  # gets what cannot be enforced

_MOST = (1 << 63) - 1024  # the largest float that the library's own integers have room for
_EXACT = 1 << 53  # up to it every integer is a float
_STEP = 1024  # whose multiples are floats up to _MOST
_DIGITS = 15
_MOST_SHOWN = 40  # characters
_LEAST_EXPONENT = -22  # of ten, in what the library reads without rounding
_MAX_COEFFICIENT = (1 << 32) - 1  # of a step,
_MAX_BOUNDED = 20_000  # and of one beside bounds, where the library looks for numbers that satisfy both
_OPEN = 10**17  # beyond which the library needs both bounds
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def is_exact(value: object) -> bool:
    """Whether a value of `const` or `enum` is enforced as it is, with all that it is made of."""
    if isinstance(value, list):
        return all(map(is_exact, value))
    if isinstance(value, dict):
        return all(map(is_exact, value.values()))
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return True
    number = Decimal(value)
    return abs(number) <= _EXACT and (_is_short(number) or _is_whole(number))


def shown(value: object) -> str:
    """A number as JSON has it; of one with many digits, how large it is; of a list or an object, the beginning."""
    text = str(value)
    if len(text) <= _MOST_SHOWN:
        return text
    return f"about {Decimal(value):.6g}" if isinstance(value, int | Decimal) else f"{text[: _MOST_SHOWN - 3]}..."


def enforce_numbers(schema: Schema, note: Note) -> None:
    """Bounds and steps of a schema, in place."""
    _enforce_bounds(schema, note)
    step = schema.get("multipleOf")
    if isinstance(step, int | Decimal) and not isinstance(step, bool) and step > 0:
        most = _MAX_BOUNDED if schema.keys() & set(_BOUNDS) else _MAX_COEFFICIENT
        if _is_step(Decimal(step), most):
            return
        note(f"'multipleOf' of {shown(step)}")
        del schema["multipleOf"]


def _enforce_bounds(schema: Schema, note: Note) -> None:
    given = {name: schema[name] for name in _BOUNDS if name in schema}
    if not given or not all(isinstance(value, int | Decimal) for value in given.values()):
        return
    least, most = (_bound(given, name) for name in ("minimum", "maximum"))
    low, high = _rounded(least, ROUND_CEILING), _rounded(most, ROUND_FLOOR)
    if high is None and low is not None and low[0] > _OPEN:
        high = Decimal(_MOST), False
    if low is None and high is not None and high[0] < -_OPEN:
        low = Decimal(-_MOST), False
    low, high = _shifted(low, high, 1), _shifted(high, low, -1)
    is_empty = low is not None and high is not None and low[0] > high[0]
    was_empty = least is not None and most is not None and least[0] > most[0]
    for name in given:
        del schema[name]
    if is_empty and not was_empty:
        note(" and ".join(f"{name!r} of {shown(value)}" for name, value in given.items()))
        return
    for end, name, exclusive in ((low, "minimum", "exclusiveMinimum"), (high, "maximum", "exclusiveMaximum")):
        if end is not None:
            schema[exclusive if end[1] else name] = end[0]


def _bound(given: Schema, name: str) -> tuple[Decimal, bool] | None:
    """The narrower of a bound and an exclusive one, and whether it is exclusive; drafts up to 4 say so with a flag."""
    plain, exclusive = given.get(name), given.get(f"exclusive{name.capitalize()}")
    if isinstance(exclusive, bool):
        return None if plain is None else (Decimal(plain), exclusive)
    ends = [
        (Decimal(value), is_exclusive)
        for value, is_exclusive in ((plain, False), (exclusive, True))
        if value is not None
    ]
    if not ends:
        return None
    sign = 1 if name == "minimum" else -1
    return max(ends, key=lambda end: (sign * end[0], end[1]))


def _rounded(end: tuple[Decimal, bool] | None, rounding: str) -> tuple[Decimal, bool] | None:
    """The bound itself, or the next number inside that is enforced exactly, and whether it is exclusive."""
    if end is None:
        return None
    value, is_exclusive = end
    sign = 1 if rounding == ROUND_CEILING else -1
    if sign * value < -_MOST:
        return Decimal(-sign * _MOST), False
    if abs(value) > _EXACT:
        with localcontext(prec=400):
            whole = value.to_integral_value(rounding)
            if is_exclusive and whole == value:
                whole += sign
            inside = (whole / _STEP).to_integral_value(rounding) * _STEP
        return inside, False
    if _is_short(value) or _is_whole(value):
        return value, is_exclusive
    with localcontext(prec=_DIGITS, rounding=rounding):
        inside = +value
        if inside.as_tuple().exponent < _LEAST_EXPONENT:  # type: ignore[operator]
            inside = inside.quantize(Decimal(1).scaleb(_LEAST_EXPONENT))
    return inside, False


def _shifted(
    end: tuple[Decimal, bool] | None, other: tuple[Decimal, bool] | None, sign: int
) -> tuple[Decimal, bool] | None:
    """An exclusive whole bound moved inside, where the other one is so near that the library would let it in."""
    if end is None or other is None or not end[1] or not _is_whole(end[0]) or abs(other[0] - end[0]) >= 1:
        return end
    return end[0] + sign * Decimal(1).scaleb(max(end[0].adjusted(), 0) - _DIGITS + 1), False


def _is_short(number: Decimal) -> bool:
    if not number.is_finite():
        return False
    _, digits, exponent = number.normalize().as_tuple()
    return len(digits) <= _DIGITS and isinstance(exponent, int) and exponent >= _LEAST_EXPONENT


def _is_whole(number: Decimal) -> bool:
    return number.is_finite() and number == number.to_integral_value()


def _is_step(step: Decimal, most: int) -> bool:
    """Whether the library finds a step's digits, as it looks for them: by tens, in floats. most: as a number."""
    if not _is_short(step) or step > most:
        return False
    value, exponent = float(step), 0
    while value % 1:
        value, exponent = value * 10, exponent + 1
    return value <= most and Decimal(int(value)).scaleb(-exponent) == step


_MAX_DIGITS = 2
_EXPONENT_DIGITS = b"0123456789"


class Exponents:
    """Follows a JSON text, and knows how many digits the exponent has in which it is."""

    def __init__(self, tokens: KeyTokens) -> None:
        self._tokens = tokens
        self._is_string = self._is_escaped = False
        self._last = 0  # byte
        self._num_digits: int | None = None  # None outside exponents

    def push(self, text: bytes) -> bool:
        """The text goes on; whether all its exponents are short."""
        are_short = True
        for byte in text:
            if self._is_string and byte != LINE_BREAK:
                self._is_string = byte != 0x22 or self._is_escaped
                self._is_escaped = byte == 0x5C and not self._is_escaped
            else:
                self._push_outside(byte)
                are_short = are_short and (self._num_digits or 0) <= _MAX_DIGITS
            self._last = byte
        return are_short

    def _push_outside(self, byte: int) -> None:
        if byte in b"eE" and self._last in _EXPONENT_DIGITS:
            self._num_digits = 0
        elif self._num_digits is not None and byte in _EXPONENT_DIGITS:
            self._num_digits += 1
        elif self._num_digits != 0 or byte not in b"+-":
            self._num_digits = None
        self._is_string, self._is_escaped = byte == 0x22, False

    def forbidden(self, mask: bytes) -> list[int]:
        """Tokens with which an exponent would be longer.

        mask: the tokens that may come; in a fixed text not every digit is among them.
        """
        more = self._tokens.digits if self._num_digits is not None and self._tokens.has_digits(mask) else ()
        tokens = self._tokens.tokens
        return [each for each in (*self._tokens.exponents, *more) if not self._copy().push(tokens[each])]

    def _copy(self) -> "Exponents":
        copy = Exponents(self._tokens)
        copy._is_string, copy._is_escaped, copy._last = self._is_string, self._is_escaped, self._last
        copy._num_digits = self._num_digits
        return copy

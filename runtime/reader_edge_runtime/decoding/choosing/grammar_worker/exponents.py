"""Exponents of two digits at most, since readers take `1e999` for infinity: no rule of the library says so."""

from .unique_keys import LINE_BREAK, KeyTokens

_MAX_DIGITS = 2
_DIGITS = b"0123456789"


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
        if byte in b"eE" and self._last in _DIGITS:
            self._num_digits = 0
        elif self._num_digits is not None and byte in _DIGITS:
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

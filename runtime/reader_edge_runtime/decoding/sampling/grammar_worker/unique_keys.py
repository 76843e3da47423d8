"""No key twice in an open JSON object: a grammar cannot say so, so tokens that would repeat a key are masked."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

LINE_BREAK = 0x0A  # which is in no JSON
_QUOTE, _BACKSLASH = 0x22, 0x5C
_ODD = re.compile(rb'".*"|\\.*"|".*\\', re.DOTALL)
_FURTHER_KEY = re.compile(rb',\s*"(?:[^"\\]|\\.)*"', re.DOTALL)
_EXPONENT, _DIGITS = re.compile(rb"[eE][+-]?[0-9]{3}"), re.compile(rb"[+-]?[0-9]")


class KeyTokens:
    """The tokens of a vocabulary in which a key can end. endings: by what stands before their first quote.

    odd: those with another quote or an escape beside it. further: of them, those with a comma before a whole key.
    token_ids: of all, by their bytes. exponents: those with a long exponent. digits: those that an exponent goes on
    with. tab: one that begins with it, if there is one.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self.endings: dict[bytes, list[int]] = {}
        self.odd = [token_id for token_id, token in enumerate(tokens) if _ODD.search(token)]
        self.further = [token_id for token_id in self.odd if _FURTHER_KEY.search(tokens[token_id])]
        self.token_ids = {token: token_id for token_id, token in enumerate(tokens)}
        self.exponents = [token_id for token_id, token in enumerate(tokens) if _EXPONENT.search(token)]
        self.digits = [token_id for token_id, token in enumerate(tokens) if _DIGITS.match(token)]
        self.tab = [token_id for token_id, token in enumerate(tokens) if token.startswith(b"\t")][:1]
        self._ten = [self.token_ids[digit] for digit in map(b"%d".__mod__, range(10)) if digit in self.token_ids]
        for token_id, token in enumerate(tokens):
            if b'"' in token:
                self.endings.setdefault(token[: token.index(b'"')], []).append(token_id)

    def has_digits(self, mask: bytes) -> bool:
        """Whether every digit is among the tokens of a mask."""
        return all(mask[token_id >> 3] >> (token_id & 7) & 1 for token_id in self._ten)


class UniqueKeys:
    """Follows a JSON text without free spaces, and knows the keys of the objects that are open."""

    def __init__(self, tokens: KeyTokens) -> None:
        self._tokens = tokens
        # Of each object that is open, with how they are spelled; None for a list.
        self._keys: list[Mapping[str, bytes] | None] = []
        self._is_string = self._is_key = self._is_escaped = False
        self._key = b""  # as far as it came

    def push(self, text: bytes) -> bool:
        """The text goes on; whether no key of it was there before."""
        is_unique = True
        for byte in text:
            if byte == LINE_BREAK:
                self._keys, self._is_string, self._is_key = [], False, False
            elif self._is_string:
                is_unique = self._push_inside(byte) and is_unique
            elif byte == _QUOTE:
                self._is_string, self._key = True, b""
            elif byte in b"{[":
                self._keys.append({} if byte == 0x7B else None)
                self._is_key = byte == 0x7B
            elif byte in b"}]":
                del self._keys[-1:]
                self._is_key = False
            elif byte in b",:":
                self._is_key = byte == 0x2C and bool(self._keys) and self._keys[-1] is not None
        return is_unique

    def _push_inside(self, byte: int) -> bool:
        """A byte of a string; whether it ends a key that was there before."""
        if self._is_escaped or byte == _BACKSLASH:
            self._is_escaped = not self._is_escaped
        elif byte == _QUOTE:
            self._is_string = False
            return not self._is_key or self._take_key()
        if self._is_key:
            self._key += bytes([byte])
        return True

    def _take_key(self) -> bool:
        keys, key = self._keys[-1], _unescaped(self._key)
        if keys is None or key in keys:
            return False
        self._keys[-1] = {**keys, key: b'"' + json.dumps(key, ensure_ascii=False)[1:-1].encode()}
        return True

    def forbidden(self, ahead: Callable[[bytes], Iterable[int]] | None) -> list[int]:
        """Tokens with which a key would come again.

        ahead: tokens that the grammar allows behind a text; None where a key can always grow.
        """
        keys = self._keys[-1] if self._is_key else None
        tried = self._tokens.odd if keys else self._tokens.further
        found = [each for each in tried if not self._copy().push(self._tokens.tokens[each])]
        if not keys or self._is_escaped:
            return found
        begun = b'"' + self._key if self._is_string else b""
        rests = [text[len(begun) :] for text in keys.values() if text.startswith(begun)]
        steps = {rest[:size] for rest in rests for size in range(1, len(rest) + 1)} if ahead is not None else ()
        token_ids = self._tokens.token_ids
        found += [token_ids[step] for step in steps if step in token_ids and self._is_dead(step, rests, ahead)]
        if self._is_string:
            if b"\\" in self._key:
                rests = [rest for rest in self._tokens.endings if _unescaped(self._key + rest) in keys]
            found += [token_id for rest in rests for token_id in self._tokens.endings.get(rest, ())]
        return found

    def _is_dead(self, text: bytes, rests: list[bytes], ahead: Callable[[bytes], Iterable[int]] | None) -> bool:
        """Whether a text leads to earlier keys alone. rests: what is left of each of them."""
        for token_id in ahead(text) if ahead is not None else ():
            part, quote, _ = self._tokens.tokens[token_id].partition(b'"')
            longer = text + part
            if quote and longer not in rests:
                return False
            if not quote and not (
                any(rest.startswith(longer) for rest in rests) and self._is_dead(longer, rests, ahead)
            ):
                return False
        return True

    def _copy(self) -> "UniqueKeys":
        copy = UniqueKeys(self._tokens)
        copy._keys = self._keys.copy()
        copy._is_string, copy._is_key, copy._is_escaped = self._is_string, self._is_key, self._is_escaped
        copy._key = self._key
        return copy


def _unescaped(key: bytes) -> str:
    """A key without its escapes."""
    try:
        return str(json.loads(b'"' + key + b'"'))
    except ValueError:  # it does not end here
        return "\0" + key.decode(errors="replace")

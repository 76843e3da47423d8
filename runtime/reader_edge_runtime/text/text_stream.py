"""The text of an answer as it streams: out as soon as no later token can change it, ended by stop strings."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from reader_edge_runtime.text.tokenizer import Tokenizer

_FIRST_MARK = 0xD800  # surrogates: no text that a tokenizer decodes has any
_UNNAMED = "\udfff"
_MARKS = re.compile("[\ud800-\udfff]")


class StopStrings:
    """Finds stop strings in a text that has a mark, one character, in place of each special token.

    A stop string is found where the text has it, with its special tokens or without.
    marks: of special tokens, by token id; empty where no stop string names one.
    """

    def __init__(self, stops: Sequence[str], special_tokens: Mapping[int, str]) -> None:
        """special_tokens: those that the text leaves out, what they would be in it, by id."""
        stops = [stop for stop in stops if not _MARKS.search(stop)]  # others are in no text
        named = {name for name in special_tokens.values() if any(name in stop for stop in stops)}
        mark_of = {name: chr(_FIRST_MARK + number) for number, name in enumerate(sorted(named, key=len, reverse=True))}
        self.marks = {token_id: mark_of.get(name, _UNNAMED) for token_id, name in special_tokens.items() if named}
        self._plain = tuple(stops)
        self._marked: dict[str, str] = {}  # those that name special tokens, by their form with marks
        if named:
            names = re.compile("|".join(map(re.escape, mark_of)))
            marked = {names.sub(lambda found: mark_of[found[0]], stop): stop for stop in stops}
            self._marked = {form: stop for form, stop in marked.items() if _MARKS.search(form)}
        self._longest = max(map(len, self._plain), default=1) - 1  # of what may begin one
        self.last_bytes = {stop.encode(errors="replace")[-1:] for stop in stops}

    def find(self, text: str) -> tuple[int, str]:
        """Where the first stop string in a text begins, and which it is; -1 where there is none."""
        found = [(text.find(form), stop) for form, stop in self._marked.items()]
        plain = without_marks(text)
        starts = [(plain.find(stop), stop) for stop in self._plain]
        if len(plain) < len(text):
            places = [place for place, character in enumerate(text) if not _MARKS.match(character)]
            starts = [(places[start] if start >= 0 else -1, stop) for start, stop in starts]
        return min(((start, stop) for start, stop in (*found, *starts) if start >= 0), default=(-1, ""))

    def num_held(self, text: str) -> int:
        """Length of the longest end of a text that begins a stop string."""
        num_marks = len(text) - len(without_marks(text))
        sizes = range(min(self._longest + num_marks, len(text)), 0, -1)
        return next((size for size in sizes if self._begins(text[-size:])), 0)

    def _begins(self, text: str) -> bool:
        plain = without_marks(text)
        is_plain = bool(plain) and any(stop.startswith(plain) for stop in self._plain)
        return is_plain or any(stop.startswith(text) for stop in self._marked)


def without_marks(text: str) -> str:
    """What the caller sees of a text."""
    return _MARKS.sub("", text)


_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A UTF-8 character has at most four bytes, and a token at least one: whether a text ends inside a character shows in
# its last four tokens.
_MAX_CHARACTER_TOKENS = 4
_BYTE_TOKEN = re.compile("<0x..>")
_NONE: Mapping[int, str] = MappingProxyType({})


class StreamDecoder:
    """The text of an answer, piece by piece: together, what decoding prompt and answer gives behind the prompt.

    A token's text depends on its neighbours, so tokens are decoded behind those that came out last. They are held back
    while the text may end inside a character, and while they are byte tokens: a byte-fallback vocabulary decodes a
    run of them as a whole, and one bad byte spoils all.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], kept: Mapping[int, str] = _NONE) -> None:
        """kept: special tokens that are a part of the text, which decoding leaves out."""
        self._tokenizer = tokenizer
        self._kept = kept
        self._buffer: list[int] = []
        self._shown: list[int] = []
        for token_id in reversed(prompt_token_ids):
            token = tokenizer.token(token_id)
            if token is None:
                continue
            self._shown.insert(0, token_id)
            if len(self._shown) >= _MAX_CHARACTER_TOKENS and not _BYTE_TOKEN.fullmatch(token):
                break

    @property
    def is_holding(self) -> bool:
        """Whether tokens came whose text is not certain."""
        return bool(self._buffer)

    def push(self, token_id: int) -> str:
        """The text that is certain after one more token."""
        token = self._tokenizer.token(token_id)
        if token is None:
            return self.finish() + self._kept[token_id] if token_id in self._kept else ""
        self._buffer.append(token_id)
        if _BYTE_TOKEN.fullmatch(token):
            return ""
        if len(self._buffer) > _MAX_CHARACTER_TOKENS:  # else a long run of broken characters is decoded again for each
            last = self._tokenizer.decode(self._buffer[-_MAX_CHARACTER_TOKENS:])
            if last.endswith(_REPLACEMENT):
                return ""
        return self._release(is_end=False)

    def peek(self) -> str:
        """The text still held back, as far as it is known; half a character is a replacement character."""
        return self._tokenizer.decode(self._shown + self._buffer)[len(self._tokenizer.decode(self._shown)) :]

    def settle(self) -> str:
        """The text still held back, but for one that ends inside a character."""
        return self._release(is_end=False)

    def finish(self) -> str:
        """The text still held back; half a character comes out as a replacement character."""
        return self._release(is_end=True)

    def _release(self, is_end: bool) -> str:
        shown = self._tokenizer.decode(self._shown)
        text = self._tokenizer.decode(self._shown + self._buffer)
        if len(text) <= len(shown) or (text.endswith(_REPLACEMENT) and not is_end):
            return ""
        self._shown, self._buffer = self._buffer, []
        return text[len(shown) :]


class TextStream:
    """Decodes emitted tokens and watches for stop strings; text that may begin one is held back.

    A stop string may name special tokens, which are not in the text: "<|im_end|>" ends the answer at that token.
    kept: special tokens that are a part of the text. stop_string: which ended it; "" where none did.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        stop: Sequence[str],
        kept: Mapping[int, str] = _NONE,
    ) -> None:
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer, prompt_token_ids, kept)
        left_out = {token_id: text for token_id, text in tokenizer.special_tokens.items() if token_id not in kept}
        self._stops = StopStrings(stop, left_out)
        self._buffer = ""
        self._ready = ""
        self.stop_string = ""

    def push(self, token_id: int) -> bool:
        """Take one emitted token; True when a stop string is complete."""
        mark = self._stops.marks.get(token_id)
        if mark is not None:
            self._add(self._decoder.settle() + mark)
            return bool(self.stop_string)
        self._add(self._decoder.push(token_id))
        if self._decoder.is_holding and self._is_end_held(token_id):
            self._add(self._decoder.settle())
        return bool(self.stop_string)

    def take(self) -> str:
        """Text that became certain since the last call."""
        text, self._ready = self._ready, ""
        return text

    def finish(self) -> None:
        """Release what is held back; the answer is over."""
        if not self.stop_string:
            self._add(self._decoder.finish())
            self._ready, self._buffer = self._ready + without_marks(self._buffer), ""

    def _is_end_held(self, token_id: int) -> bool:
        """Whether a stop string ends with this token in text that is held back, as a line end may that is a byte."""
        may_end = self._tokenizer.token_bytes(token_id)[-1:] in self._stops.last_bytes
        return may_end and self._stops.find(self._buffer + self._decoder.peek())[0] >= 0

    def _add(self, text: str) -> None:
        text = self._buffer + text
        end, self.stop_string = self._stops.find(text)
        split = end if end >= 0 else len(text) - self._stops.num_held(text)
        self._ready += without_marks(text[:split])
        self._buffer = "" if end >= 0 else text[split:]

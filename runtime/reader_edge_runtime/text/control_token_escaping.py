"""Escapes characters of user text that could form a control token, and restores them after rendering.

A template trims, joins and quotes the texts that it is given, so that its result does not show which of the characters
are theirs. Here those characters of the texts that could be part of a control token are replaced by private ones
before, and put back behind: whatever the template did, a private character came from a text.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.text.conversation import Conversation

_FIRST, _LAST, _BLOCK = 0xF0000, 0x10F800, 0x400  # Unicode's supplementary private use areas
_WORD, _MARK = re.compile(r"[^\W_]+"), re.compile(r"[^\w\s]|_")  # what control tokens are made of
_NAME = re.compile(r"[\w-]*", re.ASCII)
_STRUCTURE = ("role", "type", "id", "tool_call_id")  # which templates compare or rewrite, where they are plain names


@dataclass(frozen=True, slots=True)
class ControlTokenEscaping:
    """private: character -> private character. parts: what is replaced in texts; marks: in names and keys."""

    private: Mapping[str, str]
    parts: re.Pattern[str]
    marks: re.Pattern[str]

    @classmethod
    def of(cls, tokens: Collection[str], conversation: Conversation, fold: Callable[[str], str]) -> Self:
        """One for control tokens and a conversation, in which its private characters do not occur.

        fold: what the tokenizer's normalizer makes of a character; texts could spell a control token by it.
        """
        words = sorted({word for token in tokens for word in _WORD.findall(token)}, key=len, reverse=True)
        bare = [token for token in tokens if not _MARK.search(token)]  # nothing but the word hides these
        parts = [conversation.messages, conversation.tools, conversation.template_args]
        given = json.dumps(parts, ensure_ascii=False, default=dict)  # they were rendered, so that they can be this
        own = {mark for token in tokens for mark in _MARK.findall(token)}
        marks = sorted(own | _look_alikes(own.union(*bare), given, fold))
        characters = sorted({*marks, *"".join([*words, *bare])})
        first = _unused_block(given)
        if len(characters) > _BLOCK:
            raise PromptError("The model's control tokens have too many characters to be distinguished from texts.")
        any_mark = "|".join(map(re.escape, marks)) or "(?!)"
        whole_word = rf"(?<![^\W_])(?:{'|'.join(map(re.escape, words)) or '(?!)'})(?![^\W_])"
        any_bare = "|".join(map(re.escape, sorted(bare, key=len, reverse=True))) or "(?!)"
        return cls(
            {character: chr(first + number) for number, character in enumerate(characters)},
            re.compile(f"{any_mark}|{whole_word}|{any_bare}"),
            re.compile(f"{any_mark}|{any_bare}"),
        )

    def escape(self, conversation: Conversation) -> Conversation:
        """The conversation with private characters in its texts."""
        return replace(
            conversation,
            messages=[self._hidden(dict(message), self.parts) for message in conversation.messages],
            tools=[self._hidden(dict(tool), self.parts) for tool in conversation.tools],
            template_args={name: self._hidden(arg, self.marks) for name, arg in conversation.template_args.items()},
        )

    def restore(self, rendered: str) -> tuple[str, str]:
        """(text, the same with private characters where texts had them), of equal length."""
        spelled: dict[str, str] = {}
        for character, private in self.private.items():
            escape = json.dumps(private).strip('"')
            spelled |= {private: character, escape: character, repr(private).strip("'"): character}
        found = re.compile("|".join(map(re.escape, spelled)) or "(?!)")
        text = found.sub(lambda match: spelled[match[0]], rendered)
        return text, found.sub(lambda match: self.private[spelled[match[0]]], rendered)

    def _hidden(self, value: Any, pattern: re.Pattern[str]) -> Any:
        if isinstance(value, str):
            return pattern.sub(self._private, value)
        if isinstance(value, Mapping):
            return {self._hidden_key(key): self._hidden_member(key, value[key], pattern) for key in value}
        if isinstance(value, list | tuple):
            return [self._hidden(each, pattern) for each in value]
        return value

    def _hidden_member(self, key: object, value: Any, pattern: re.Pattern[str]) -> Any:
        is_plain = key in _STRUCTURE and isinstance(value, str) and _NAME.fullmatch(value)
        return value if is_plain else self._hidden(value, pattern)

    def _hidden_key(self, key: object) -> object:
        is_plain = not isinstance(key, str) or _NAME.fullmatch(key)
        return key if is_plain else self.marks.sub(self._private, str(key))

    @property
    def _private(self) -> Callable[[re.Match[str]], str]:
        return lambda match: "".join(self.private[character] for character in match[0])


def _look_alikes(characters: Collection[str], given: str, fold: Callable[[str], str]) -> set[str]:
    """Other characters of a text that a normalizer makes the same of as of these, or these themselves."""
    folded = {each for each in (*characters, *map(fold, characters)) if each.strip()}
    others = {character for character in set(given).difference(characters) if not character.isspace()}
    return {character for character in others if any(each in fold(character) for each in folded)}


def _unused_block(given: str) -> int:
    """Where private characters begin that neither stand in a conversation nor are spelled there."""
    used = {ord(character) // _BLOCK for character in set(given)}
    lowered = given.lower()
    for first in range(_FIRST, _LAST, _BLOCK):
        high = json.dumps(chr(first)).strip('"')[:6]
        if first // _BLOCK not in used and high not in lowered and f"\\u{first >> 8:06x}"[:7] not in lowered:
            return first
    raise PromptError("The texts use all private characters of Unicode: leave some out.")

"""Where tokens begin in a text, in characters: a part of a character begins where the character does."""

import codecs
import re
from collections.abc import Sequence

from reader_edge_runtime.text.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile("<0x..>")
_NUM_BEHIND = 64  # tokens of a prompt that what is behind them may hang on: a part of a character, a run of bytes


class TextOffsets:
    """Of tokens that come one after the other, in the text that decoding them gives. Special tokens have none in it.

    is_first: whether no token with a text has come yet.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.is_first = True
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0
        self._run, self._run_begin = b"", 0  # of byte tokens

    @classmethod
    def behind(cls, token_ids: Sequence[int], num_characters: int, tokenizer: Tokenizer) -> "TextOffsets":
        """Of tokens that go on from a prompt, of which this many characters stand before theirs."""
        offsets = cls(tokenizer)
        for token_id in token_ids[-_NUM_BEHIND:]:
            offsets.push(token_id)
        # A character that the prompt has begun is in its text already, as a replacement character.
        end = offsets._run_begin + _num_characters(offsets._run) if offsets._run else offsets._offset
        shift = num_characters - end - (offsets._is_inside_character and not offsets._run)
        offsets._offset += shift
        offsets._run_begin += shift
        offsets.is_first = all(tokenizer.token(token_id) is None for token_id in token_ids)
        return offsets

    def push(self, token_id: int) -> int:
        """Where the next token begins."""
        token = self._tokenizer.token(token_id)
        if token is None:
            return max(self._offset, 0)
        spelled = self._tokenizer.token_bytes(token_id, self.is_first)
        self.is_first = False
        if len(spelled) == 1 and _BYTE_TOKEN.fullmatch(token):
            self._run_begin = self._run_begin if self._run else self._offset
            self._run += spelled
        elif self._run:
            self._offset = self._run_begin + _num_characters(self._run)
            self._characters.reset()
            self._run = b""
        if self._is_inside_character and not self._is_continued(spelled):
            self._offset += len(self._characters.decode(b"", final=True))
        begin = self._offset
        self._offset += len(self._characters.decode(spelled))
        return max(begin, 0)

    @property
    def _is_inside_character(self) -> bool:
        return bool(self._characters.getstate()[0])

    def _is_continued(self, spelled: bytes) -> bool:
        """Whether bytes belong to the character that was begun."""
        try:
            codecs.getincrementaldecoder("utf-8")().decode(self._characters.getstate()[0] + spelled[:1])
        except UnicodeDecodeError:
            return False
        return True


def prompt_offsets(prompt: str | None, token_ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Where a prompt's tokens begin in its text, which is what was given, or what the token ids decode to.

    prompt: None where it was token ids. A special token that the prompt spells stands there like any other; one that
    was added to it has no characters.
    """
    if prompt is None:
        offsets = TextOffsets(tokenizer)
        return [offsets.push(token_id) for token_id in token_ids]
    found, end = [0], 0
    for token_id, (begin, token_end) in zip(token_ids, tokenizer.spans(prompt), strict=True):
        spelled = tokenizer.token_bytes(token_id).decode(errors="replace")
        trimmed = begin - (len(spelled) - len(spelled.lstrip()))  # some tokenizers do not count a token's spaces
        if trimmed >= 0 and prompt.startswith(spelled, trimmed) and not prompt.startswith(spelled, begin):
            begin = trimmed
        found.append(end if (begin, token_end) == (0, 0) else max(begin, found[-1]))
        end = max(end, token_end)
    return found[1:]


def _num_characters(run: bytes) -> int:
    """That a run of byte tokens decodes to: one bad byte spoils all."""
    try:
        return len(run.decode())
    except UnicodeDecodeError:
        return len(run)

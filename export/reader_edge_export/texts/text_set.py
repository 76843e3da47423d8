"""Texts that a model is calibrated and measured on: documents and conversations, templated as in use."""

import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Literal

from reader_edge_runtime.errors import ExportError, PromptError
from reader_edge_runtime.text.conversation import Conversation, Message
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.untrusted.user_input import as_text, read_bounded

MAX_SEQUENCE = 512  # tokens; the logits of so many are held at once

_MAX_BYTES = 1 << 26
_PART = 2000  # characters of a user's text that make a document: about MAX_SEQUENCE tokens

Turns = Sequence[Message]


class TextSet:
    """Documents (texts) and conversations, the last message of each an answer; in an order of which any part is mixed.

    The bundled sets have no text in common: "calibration" is what rounding may learn from, "held_out" what it is
    measured on.
    """

    def __init__(self, samples: Sequence[str | Turns]) -> None:
        self._samples = samples

    @classmethod
    def bundled(cls, name: Literal["calibration", "held_out"]) -> "TextSet":
        lines = resources.files(__package__).joinpath(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        fields = map(json.loads, lines)
        return cls([sample["messages"] if "messages" in sample else sample["text"] for sample in fields])

    @classmethod
    def read(cls, path: Path) -> "TextSet":
        """A user's plain text, as documents of a sequence's length. Raises ExportError."""
        try:
            text = as_text(read_bounded(path, _MAX_BYTES))
        except OSError as error:
            raise ExportError(f"'{path}' cannot be the calibration text ({error.strerror}): give another.") from error
        except UnicodeDecodeError as error:
            raise ExportError(
                f"The calibration text '{path}' is not UTF-8 (byte {error.start}): save it as plain text."
            ) from None
        if not text.strip():
            raise ExportError(f"The calibration text '{path}' is empty: give some paragraphs of plain text.")
        return cls([text[start : start + _PART] for start in range(0, len(text), _PART)])

    def fingerprint(self) -> str:
        """SHA-256 (hex) over all of it."""
        return hashlib.sha256(json.dumps(self._samples).encode()).hexdigest()

    def token_sequences(self, tokenizer: Tokenizer, max_length: int, max_tokens: int) -> list[list[int]]:
        """Token ids of each text from its beginning, cut to `max_length`; in all `max_tokens` at most.

        Raises ExportError where the tokenizer finds no token in any of them.
        """
        sequences = []
        for sample in self._samples:
            token_ids = _token_ids(tokenizer, sample)[: min(max_length, max_tokens)]
            if token_ids:
                sequences.append(token_ids)
                max_tokens -= len(token_ids)
        if not sequences:
            raise ExportError("The model's tokenizer finds no token in plain text: save the model's own there again.")
        return sequences


def _token_ids(tokenizer: Tokenizer, sample: str | Turns) -> list[int]:
    """A document with the model's start tokens, or a conversation's prompt as its template has it and the answer."""
    if isinstance(sample, str):
        return tokenizer.encode(sample)
    *prompt, answer = sample
    try:
        return tokenizer.encode_chat(Conversation(prompt)) + tokenizer.encode(
            answer["content"], adds_special_tokens=False
        )
    except PromptError:  # no template, or one that has no place for these turns
        return tokenizer.encode("\n\n".join(message["content"] for message in sample))

"""Recorded answers: files of requests and what a model answered."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.errors import PromptError, UserFileError
from reader_edge_runtime.package.manifest import MAX_VOCAB
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.untrusted.user_input import as_text, read_bounded

# Stands for the end of an answer; any id that the tokenizer does not use would do.
END_TOKEN_ID = 32000
_MAX_BYTES = 1 << 28
_WANTED = 'a line is {"task": text, "turns": [{"input": text, "output": text}]}'


@dataclass(frozen=True, slots=True)
class Successors:
    """What the recorded model thought likely after R tokens of prompt and answer.

    positions: int64 (R,), ascending, of these tokens in the text. top_ids: int64 (R, K), its best successors, best
    first. top_logits: float32 (R, K).
    """

    positions: Int64Array
    top_ids: Int64Array
    top_logits: Float32Array


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """Token ids of a prompt and of its answer. successors: None where only texts were recorded."""

    prompt: list[int]
    output: list[int]
    successors: Successors | None = None


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it was recorded."""

    task: str
    turns: list[RecordedTurn]


def read_recording(path: Path, tokenizer: Tokenizer, end_token_id: int = END_TOKEN_ID) -> list[RecordedRequest]:
    """Requests of a recording, one JSON object a line: task and turns of input and output. Raises UserFileError.

    With the tokenizer that a line was recorded with, its token ids and successors are taken; otherwise texts are
    encoded, and end_token_id closes each output.
    """
    try:
        lines = as_text(read_bounded(path, _MAX_BYTES)).split("\n")
    except UnicodeDecodeError as error:
        raise UserFileError(f"'{path}' is not UTF-8 text (byte {error.start}): {_WANTED}.") from error
    fingerprint = tokenizer.fingerprint()
    requests = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            has_ids = record.get("tokenizer") == fingerprint
            turns = [
                _decoded_turn(turn, _vocab_size(record, tokenizer))
                if has_ids
                else _encoded_turn(turn, tokenizer, end_token_id)
                for turn in record["turns"]
            ]
        except PromptError as error:
            raise UserFileError(f"Line {number} of '{path}': {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserFileError(f"Line {number} of '{path}' is not a recorded request: {_WANTED}.") from error
        if turns and not turns[0].prompt:  # compiled drafting looks at the last token unchecked
            raise UserFileError(f"Line {number} of '{path}' begins with an empty input: drafting needs a token before.")
        requests.append(RecordedRequest(str(record.get("task", "")), turns))
    if not any(request.turns for request in requests):
        raise UserFileError(f"'{path}' holds no recorded answer: {_WANTED}.")
    return requests


def _encoded_turn(turn: Any, tokenizer: Tokenizer, end_token_id: int) -> RecordedTurn:
    texts = turn["input"], turn["output"]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(texts)
    prompt, output = (tokenizer.encode(text, False) for text in texts)
    return RecordedTurn(prompt, [*output, end_token_id])


def _vocab_size(record: dict[str, Any], tokenizer: Tokenizer) -> int:
    """Of the recorded model, which may have more ids than its tokenizer; older recordings do not tell."""
    vocab_size = record.get("vocab_size", tokenizer.vocab_size)
    if type(vocab_size) is not int or not tokenizer.vocab_size <= vocab_size <= MAX_VOCAB:
        raise ValueError("its vocabulary is none of this tokenizer")
    return vocab_size


def _decoded_turn(turn: Any, vocab_size: int) -> RecordedTurn:
    """A turn with the ids that were decoded. They are all checked: compiled drafting looks them up unchecked."""
    prompt, output = (_whole_numbers(turn[name], 1, vocab_size) for name in ("input_ids", "output_ids"))
    positions = _whole_numbers(turn["positions"], 1, len(prompt) + len(output))
    top_ids, logits = _whole_numbers(turn["top_ids"], 2, vocab_size), np.array(turn["top_logits"])
    if len(positions) != len(top_ids) or top_ids.shape != logits.shape or logits.dtype.kind not in "fi":
        raise ValueError("rows do not belong together")
    if (np.diff(positions) <= 0).any():
        raise ValueError("positions do not ascend")
    with np.errstate(over="ignore"):
        top_logits = logits.astype(np.float32)
    return RecordedTurn(prompt.tolist(), output.tolist(), Successors(positions, top_ids, top_logits))


def _whole_numbers(values: Any, num_dimensions: int, limit: int) -> Int64Array:
    """Numbers from 0 to below `limit`, at least one. Raises ValueError."""
    numbers = np.array(values)
    if numbers.dtype.kind != "i" or numbers.ndim != num_dimensions or not numbers.size:
        raise ValueError(f"{values!r:.80} are no whole numbers")
    if numbers.min() < 0 or numbers.max() >= limit:
        raise ValueError(f"{values!r:.80} are not all below {limit}")
    return numbers.astype(np.int64)

"""Recorded answers: files of requests and what a model answered."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.errors import PromptError, UserFileError
from reader_edge_runtime.package.manifest import MAX_VOCAB
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.untrusted.untrusted_json import Figure, Kind, converted, decoded
from reader_edge_runtime.untrusted.user_input import BYTE_ORDER_MARK, read_bounded

# Stands for the end of an answer; any id that the tokenizer does not use would do.
END_TOKEN_ID = 32000
_MAX_BYTES = 1 << 28
_WANTED = 'a line is {"task": text, "turns": [{"input": text, "output": text}]}'
_Numbers = Annotated[list[Annotated[int, Meta(ge=0, lt=MAX_VOCAB)]], Meta(min_length=1)]


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


class RecordedLine(Struct, frozen=True):
    """A line as it is written. tokenizer: whose ids its turns have, if they have any.

    vocab_size: of the recorded model, which may have more ids than its tokenizer; older recordings do not tell.
    """

    turns: list[dict[str, Any]]
    task: str = ""
    tokenizer: str | None = None
    vocab_size: Annotated[int, Meta(ge=1, le=MAX_VOCAB)] | None = None


class TextTurn(Struct, frozen=True):
    """A turn of a line, as texts."""

    input: str
    output: str


class TokenTurn(Struct, frozen=True):
    """A turn of a line, as what `Successors` and `RecordedTurn` have."""

    input_ids: _Numbers
    output_ids: _Numbers
    positions: _Numbers
    top_ids: list[_Numbers]
    top_logits: list[list[Figure]]


def read_recording(path: Path, tokenizer: Tokenizer, end_token_id: int = END_TOKEN_ID) -> list[RecordedRequest]:
    """Requests of a recording, one JSON object a line: task and turns of input and output. Raises UserFileError.

    With the tokenizer that a line was recorded with, its token ids and successors are taken; otherwise texts are
    encoded, and end_token_id closes each output.
    """
    fingerprint, requests = tokenizer.fingerprint(), []
    for number, text in enumerate(read_bounded(path, _MAX_BYTES).lstrip(BYTE_ORDER_MARK).split(b"\n"), start=1):
        if not text.strip():
            continue
        place = f"Line {number} of '{path}'"
        line = _read(decoded(text, place, UserFileError, _WANTED), RecordedLine, place)
        if line.tokenizer == fingerprint:
            vocab_size = line.vocab_size or tokenizer.vocab_size
            turns = [_decoded_turn(_read(turn, TokenTurn, place), vocab_size, place) for turn in line.turns]
        else:
            turns = [_encoded_turn(_read(turn, TextTurn, place), tokenizer, end_token_id, place) for turn in line.turns]
        if turns and not turns[0].prompt:  # compiled drafting looks at the last token unchecked
            raise UserFileError(f"{place} begins with an empty input: drafting needs a token before.")
        requests.append(RecordedRequest(line.task, turns))
    if not any(request.turns for request in requests):
        raise UserFileError(f"'{path}' holds no recorded answer: {_WANTED}.")
    return requests


def _read(values: object, kind: type[Kind], place: str) -> Kind:
    return converted(values, kind, place, UserFileError, _WANTED)


def _encoded_turn(turn: TextTurn, tokenizer: Tokenizer, end_token_id: int, place: str) -> RecordedTurn:
    try:
        prompt, output = (tokenizer.encode(text, False) for text in (turn.input, turn.output))
    except PromptError as error:
        raise UserFileError(f"{place}: {error}") from error
    return RecordedTurn(prompt, [*output, end_token_id])


def _decoded_turn(turn: TokenTurn, vocab_size: int, place: str) -> RecordedTurn:
    """A turn with the ids that were decoded. They are all checked: compiled drafting looks them up unchecked."""
    most = max(map(max, (turn.input_ids, turn.output_ids, *turn.top_ids)))
    if most >= vocab_size:
        raise UserFileError(f"{place} has the token id {most} of a vocabulary of {vocab_size}: record it again.")
    ends = [*turn.positions, len(turn.input_ids) + len(turn.output_ids)]
    widths = {*map(len, turn.top_ids), *map(len, turn.top_logits)}
    is_fitting = len(turn.positions) == len(turn.top_ids) == len(turn.top_logits) and len(widths) == 1
    if not is_fitting or any(here >= following for here, following in pairwise(ends)):
        raise UserFileError(f"{place} has successors that do not fit its tokens: record it again.")
    with np.errstate(over="ignore"):
        top_logits = np.array(turn.top_logits, np.float64).astype(np.float32)
    successors = Successors(np.array(turn.positions, np.int64), np.array(turn.top_ids, np.int64), top_logits)
    return RecordedTurn(turn.input_ids, turn.output_ids, successors)

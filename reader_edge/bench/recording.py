"""Recorded answers: files of requests and what a model said to them."""

import json
from dataclasses import dataclass
from pathlib import Path

from reader_edge_runtime.errors import ConfigError, PromptError
from reader_edge_runtime.text.tokenizer import Tokenizer

# Stands for the end of an answer; any id that the tokenizer does not use would do.
END_TOKEN_ID = 32000
_WANTED = 'a line is {"task": text, "turns": [{"input": text, "output": text}]}'


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it was recorded. turns: (input, output) token ids; an end token closes each output."""

    task: str
    turns: list[tuple[list[int], list[int]]]


def read_recording(path: Path, tokenizer: Tokenizer, end_token_id: int = END_TOKEN_ID) -> list[RecordedRequest]:
    """Requests of a recording, one JSON object a line: task and turns of input and output. Raises ConfigError."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"'{path}' is not UTF-8 text (byte {error.start}): {_WANTED}.") from error
    requests = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            requests.append(_recorded_request(line, tokenizer, end_token_id))
        except PromptError as error:
            raise ConfigError(f"Line {number} of '{path}': {error}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"Line {number} of '{path}' is not a recorded request: {_WANTED}.") from error
    if not any(request.turns for request in requests):
        raise ConfigError(f"'{path}' holds no recorded answer: {_WANTED}.")
    return requests


def _recorded_request(line: str, tokenizer: Tokenizer, end_token_id: int) -> RecordedRequest:
    record = json.loads(line)
    turns = []
    for turn in record["turns"]:
        texts = turn["input"], turn["output"]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(texts)
        prompt, output = (tokenizer.encode(text, False) for text in texts)
        turns.append((prompt, [*output, end_token_id]))
    return RecordedRequest(str(record.get("task", "")), turns)

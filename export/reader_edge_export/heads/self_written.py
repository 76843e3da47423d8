"""A folder of answers that a package wrote itself, with hidden states; in parts, so that it can be gone on with."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from reader_edge_export.heads.state_recorder import RecordedAnswer, StateRecorder
from reader_edge_runtime.array_file import ArrayFormat
from reader_edge_runtime.config import EngineConfig, GenerationConfig
from reader_edge_runtime.engine import Engine
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.text.conversation import Encodable

BATCH = 32  # sequences of a pass: about three times the tokens a second of 4, on two cores
_PROMPTS_A_PART = 4 * BATCH
_MAX_TOKENS = 128  # of an answer

_ARRAYS = tuple(field.name for field in fields(RecordedAnswer))
_PART = ArrayFormat(
    magic=b"\x89redghq\n",
    error=ExportError,
    name="answers to learn from",
    owner="package",
    remedy="erase it, it is written anew",
    other="erase its folder, or name another --out",
    again="the same command goes on",
)


class SelfWritten:
    """Parts of answers in a folder, the n-th of them to the n-th prompts. Raises ExportError for a damaged part."""

    def __init__(self, folder: Path, fingerprint: bytes) -> None:
        self._folder = folder
        self._fingerprint = fingerprint

    def parts(self) -> Iterator[list[RecordedAnswer]]:
        """What is written so far, part by part."""
        number = 0
        while (path := self._path(number)).is_file():
            yield self._read(path)
            number += 1

    def write(
        self,
        package: Path,
        prompts: Sequence[Encodable],
        num_tokens: int,
        until: float,
        on_progress: Callable[[int, int], None],
    ) -> None:
        """Have prompts answered until there are so many tokens, no prompts are left, or the monotonic clock says so.

        on_progress: told tokens written, of earlier times too, and tokens wanted.
        """
        lengths = [sum(len(answer.states) for answer in part) for part in self.parts()]
        done, total = len(lengths), sum(lengths)
        on_progress(min(total, num_tokens), num_tokens)
        if total >= num_tokens or done * _PROMPTS_A_PART >= len(prompts):
            return
        recorder = StateRecorder()
        config = EngineConfig(max_batch=BATCH, is_calibrated=False, is_probed=False)
        engine = Engine.load(package, config, drafter=recorder)
        for number in range(done, -(-len(prompts) // _PROMPTS_A_PART)):
            asked = prompts[number * _PROMPTS_A_PART : (number + 1) * _PROMPTS_A_PART]
            engine.generate_batch(asked, GenerationConfig(max_tokens=_MAX_TOKENS))
            self._write(self._path(number), recorder.answers)
            total += sum(len(answer.states) for answer in recorder.answers)
            recorder.answers = []
            on_progress(min(total, num_tokens), num_tokens)
            if total >= num_tokens or time.monotonic() > until:
                return

    def _path(self, number: int) -> Path:
        return self._folder / f"answers-{number:04}.bin"

    def _write(self, path: Path, answers: Sequence[RecordedAnswer]) -> None:
        arrays = {name: np.concatenate([getattr(answer, name) for answer in answers]) for name in _ARRAYS}
        arrays["lengths"] = np.array([[len(getattr(answer, name)) for name in _ARRAYS] for answer in answers], np.int32)
        _PART.write(path, self._fingerprint, arrays)

    def _read(self, path: Path) -> list[RecordedAnswer]:
        arrays = _PART.read(path, self._fingerprint)
        ends = np.cumsum(arrays["lengths"], 0)
        parts = [np.split(arrays[name], ends[:-1, column]) for column, name in enumerate(_ARRAYS)]
        return [RecordedAnswer(*each) for each in zip(*parts, strict=True)]

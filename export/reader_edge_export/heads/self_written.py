"""A folder of answers that a package wrote itself, with hidden states; in parts, so that it can be resumed."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path

import numpy as np

from reader_edge_export.heads.answer_arrays import ANSWER_ARRAYS, AnswerSizes
from reader_edge_export.heads.state_recorder import RecordedAnswer, StateRecorder
from reader_edge_runtime.array_file import ArrayFormat
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.config import EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.engine import Engine
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.text.conversation import Encodable

BATCH = 64  # sequences of a pass
_MAX_PART_BYTES = 1 << 34  # whose arrays stay in the file
_OLD_PROMPTS_A_PART = 128  # of those that do not tell
_TEMPERATURE = 0.7  # of answers to prompts that were answered before

_PART = ArrayFormat(
    magic=b"\x89redghq\n",
    error=ExportError,
    name="answers to learn from",
    owner="package or --format, or was written to other prompts",
    remedy="erase it, it is written again",
    other="erase its folder, or name another --out",
    again="the same command resumes",
)


@dataclass(frozen=True, slots=True)
class Manner:
    """How prompts are answered. recorder: makes the drafter that keeps what is to be learned from.

    max_tokens: of an answer. is_sampled: the first answer to a prompt too, and not only later ones.
    """

    recorder: Callable[[], StateRecorder] = StateRecorder
    max_tokens: int = 128
    is_sampled: bool = False


class SelfWritten:
    """Parts of answers in a folder, to one batch of prompts after the other. Raises ExportError for a damaged part."""

    def __init__(self, folder: Path, fingerprint: bytes, manner: Manner, sizes: AnswerSizes) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        self._manner = manner
        self._sizes = sizes

    def parts(self) -> Iterator[list[RecordedAnswer]]:
        """What is written so far, part by part; its arrays are read from the files as they are used."""
        for arrays in self._arrays():
            ends = np.cumsum(arrays["lengths"], 0)
            parts = [np.split(arrays[name], ends[:-1, column]) for column, name in enumerate(ANSWER_ARRAYS)]
            yield [RecordedAnswer(*each) for each in zip(*parts, strict=True)]

    def write(
        self,
        package: Path,
        prompts: Sequence[Encodable],
        num_tokens: int,
        until: float,
        on_progress: Callable[[int, int], None],
    ) -> None:
        """Have prompts answered until there are so many tokens, or the monotonic clock says so.

        They are asked again, and answers sampled, where one round of greedy ones is not enough; it ends early where a
        whole round brings nothing. on_progress: gets tokens written, of earlier times too, and tokens wanted.
        """
        while self._fill_gap(package, prompts, num_tokens, until, on_progress):
            pass

    def _fill_gap(
        self,
        package: Path,
        prompts: Sequence[Encodable],
        num_tokens: int,
        until: float,
        on_progress: Callable[[int, int], None],
    ) -> bool:
        """Write as `write` has it; true where that came to parts that are there, behind one that had been erased."""
        written = [(len(arrays["top_ids"]), _num_asked(arrays)) for arrays in self._arrays()]
        total, num_asked = (sum(each) for each in zip((0, 0), *written, strict=True))
        on_progress(min(total, num_tokens), num_tokens)
        if total >= num_tokens or not prompts or (total and time.monotonic() > until):
            return False
        recorder = self._manner.recorder()
        config = EngineConfig(max_batch=BATCH, is_calibrated=False, is_probed=False)
        engine = Engine.load(package, config, drafter=recorder)
        num_parts, num_untold = len(written), 0
        for batch in _answered(engine, prompts, num_asked, self._manner):
            answers = [recorder.answers.pop(each) for each in batch if each in recorder.answers]
            num_untold += len(batch)
            if answers:
                self._write(self._path(num_parts), answers, num_untold)
                num_parts, num_untold = num_parts + 1, 0
            total += sum(len(answer.top_ids) for answer in answers)
            on_progress(min(total, num_tokens), num_tokens)
            if total >= num_tokens or time.monotonic() > until or num_untold >= len(prompts):
                break
            if answers and self._path(num_parts).is_file():
                return True
        return False

    def _path(self, number: int) -> Path:
        return self._folder / f"answers-{number:04}.bin"

    def _arrays(self) -> Iterator[dict[str, Array]]:
        number = 0
        while (path := self._path(number)).is_file():
            arrays = _PART.read(path, self._fingerprint, _MAX_PART_BYTES, is_mapped=True)
            if (fault := self._sizes.fault(arrays)) is not None:
                raise ExportError(f"'{path}' has no sound {fault} of answers to learn from: {_PART.remedy}.")
            yield arrays
            number += 1

    def _write(self, path: Path, answers: Sequence[RecordedAnswer], num_asked: int) -> None:
        arrays = {name: np.concatenate([getattr(answer, name) for answer in answers]) for name in ANSWER_ARRAYS}
        arrays["lengths"] = np.array(
            [[len(getattr(answer, name)) for name in ANSWER_ARRAYS] for answer in answers], np.int32
        )
        arrays["num_asked"] = np.array([num_asked], np.int32)
        _PART.write(path, self._fingerprint, arrays)


def _num_asked(arrays: Mapping[str, Array]) -> int:
    """How many prompts a part answers, those without a token included."""
    return int(arrays["num_asked"][0]) if "num_asked" in arrays else _OLD_PROMPTS_A_PART


def _answered(engine: Engine, prompts: Sequence[Encodable], num_asked: int, manner: Manner) -> Iterator[range]:
    """Have prompts answered from a number on, round after round; tell the numbers, from 0 on, of each batch as it ends.

    The next batch is in line by then, and begins as answers end: no pass is left half empty.
    """

    def submit(number: int) -> Request:
        turn, place = divmod(num_asked + number, len(prompts))
        sampling = SamplingConfig(temperature=_TEMPERATURE if turn or manner.is_sampled else 0.0, seed=turn)
        config = GenerationConfig(max_tokens=manner.max_tokens, sampling=sampling)
        return decoder.submit(engine.encode_prompt(prompts[place]), config)

    running: list[Request] = []
    with engine.working() as decoder:
        try:
            for batch, following in pairwise(range(first, first + BATCH) for first in count(0, BATCH)):
                for number in (*(batch if not running else ()), *following):
                    running.append(submit(number))
                while any(request.is_running for request in running[: len(batch)]):
                    decoder.step()
                del running[: len(batch)]
                yield batch
        finally:
            for request in running:
                decoder.cancel(request)

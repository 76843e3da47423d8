"""A folder of answers that a package wrote itself, with hidden states; in parts, so that it can be resumed."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count, pairwise
from pathlib import Path

import numpy as np

from reader_edge_export.speculators.training.state_recorder import RecordedAnswer, StateRecorder
from reader_edge_runtime.array_file import ArrayFormat
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.config import EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.engine import Engine
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.text.conversation import Encodable

ANSWER_ARRAYS = tuple(field.name for field in fields(RecordedAnswer))
BATCH = 64  # sequences of a pass
_MAX_PART_BYTES = 1 << 34  # whose arrays stay in the file
_DTYPES = dict(zip(ANSWER_ARRAYS, ("<i4", "<i4", "<f2", "<i4", "<f4"), strict=True))
_IDS = ("prompt_ids", "token_ids", "top_ids")
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
class RecordingConfig:
    """How prompts are answered. recorder: makes the drafter that keeps answers.

    max_tokens: of an answer. is_sampled: the first answer to a prompt too, and not only later ones.
    """

    recorder: Callable[[], StateRecorder]
    max_tokens: int
    is_sampled: bool


@dataclass(frozen=True, slots=True)
class AnswerSizes:
    """vocab_size: V of the package that answered. state_size: numbers of a state."""

    vocab_size: int
    state_size: int

    def fault(self, arrays: Mapping[str, Array]) -> str | None:
        """The array at fault of what should be all fields of answers on end; None where all are sound.

        lengths: int32 (A, fields), of each answer. num_prompts: int32 (1,).
        """
        lengths = arrays.get("lengths", np.empty(0))
        if (
            lengths.dtype != "<i4"
            or lengths.shape[1:] != (len(ANSWER_ARRAYS),)
            or not len(lengths)
            or lengths.min() < 0
        ):
            return "lengths"
        totals = lengths.sum(0, np.int64)
        num_top = arrays.get("top_ids", lengths).shape[-1:]
        rows = {"states": (self.state_size,), "top_ids": num_top, "top_logits": num_top}
        for name, total in zip(ANSWER_ARRAYS, totals.tolist(), strict=True):
            array = arrays.get(name, lengths)
            if name not in arrays or array.dtype != _DTYPES[name] or array.shape != (total, *rows.get(name, ())):
                return name
            if name in _IDS and array.size and not 0 <= array.min() <= array.max() < self.vocab_size:
                return name
        return self._fault_of_lengths(lengths) or _fault_of_numbers(arrays)

    def _fault_of_lengths(self, lengths: Array) -> str | None:
        prompts, tokens, states, tops, logits = lengths.T.astype(np.int64)
        context = states - tops
        are_whole = (tops > 0) & (tokens == tops + 1) & (logits == tops)
        is_known = (context >= 0) & (context <= prompts)
        return None if (are_whole & is_known).all() else "lengths"


def _fault_of_numbers(arrays: Mapping[str, Array]) -> str | None:
    logits, num_prompts = arrays["top_logits"], arrays.get("num_prompts", np.empty(0))
    if not logits.size or not np.isfinite(logits).all():
        return "top_logits"
    is_sound = num_prompts.dtype == "<i4" and num_prompts.shape == (1,) and num_prompts[0] >= 0
    return None if is_sound else "num_prompts"


class GeneratedAnswers:
    """Parts of answers in a folder, to one batch of prompts after the other. Raises ExportError for a damaged part."""

    def __init__(self, folder: Path, fingerprint: bytes, recording: RecordingConfig, sizes: AnswerSizes) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        self._recording = recording
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

        They are answered again, sampled, where one round of greedy ones is not enough; it ends early where a
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
        written = [(len(arrays["top_ids"]), int(arrays["num_prompts"][0])) for arrays in self._arrays()]
        total, num_prompts = (sum(each) for each in zip((0, 0), *written, strict=True))
        on_progress(min(total, num_tokens), num_tokens)
        if total >= num_tokens or not prompts or (total and time.monotonic() > until):
            return False
        recorder = self._recording.recorder()
        config = EngineConfig(max_batch=BATCH, is_calibrated=False, is_probed=False)
        engine = Engine.load(package, config, drafter=recorder)
        num_parts, num_unwritten = len(written), 0
        for batch in _answered(engine, prompts, num_prompts, self._recording):
            answers = [recorder.answers.pop(each) for each in batch if each in recorder.answers]
            num_unwritten += len(batch)
            if answers:
                self._write(self._path(num_parts), answers, num_unwritten)
                num_parts, num_unwritten = num_parts + 1, 0
            total += sum(len(answer.top_ids) for answer in answers)
            on_progress(min(total, num_tokens), num_tokens)
            if total >= num_tokens or time.monotonic() > until or num_unwritten >= len(prompts):
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

    def _write(self, path: Path, answers: Sequence[RecordedAnswer], num_prompts: int) -> None:
        arrays = {name: np.concatenate([getattr(answer, name) for answer in answers]) for name in ANSWER_ARRAYS}
        arrays["lengths"] = np.array(
            [[len(getattr(answer, name)) for name in ANSWER_ARRAYS] for answer in answers], np.int32
        )
        arrays["num_prompts"] = np.array([num_prompts], np.int32)
        _PART.write(path, self._fingerprint, arrays)


def _answered(
    engine: Engine, prompts: Sequence[Encodable], num_prompts: int, recording: RecordingConfig
) -> Iterator[range]:
    """Have prompts answered from a number on, round after round; tell the numbers, from 0 on, of each batch as it ends.

    The next batch is in line by then, and begins as answers end: no pass is left half empty.
    """

    def submit(number: int) -> Request:
        turn, place = divmod(num_prompts + number, len(prompts))
        sampling = SamplingConfig(temperature=_TEMPERATURE if turn or recording.is_sampled else 0.0, seed=turn)
        config = GenerationConfig(max_tokens=recording.max_tokens, sampling=sampling)
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

"""Compares drafted answers with plain ones, token by token and logit row by row."""

import hashlib
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from reader_edge.verify.result import Counts, Divergence, ProofRun
from reader_edge.verify.variants import Setting
from reader_edge_runtime import GenerationConfig, GenerationStats
from reader_edge_runtime.adapters.adapter_set import LoadedAdapter
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.images.prompt_reader import ReadPrompt
from reader_edge_runtime.target import InFlightPass, Pass, PipelinedTarget, Target


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """Tokens of a plain answer, and a digest of the logit row each was chosen from. question: its index.

    chunk: tokens of its prompt that are scored between two steps; 0 for the engine's own. is_whole: whether it came to
    its end; else it is compared as far as it goes.
    """

    question: int
    prompt: ReadPrompt
    config: GenerationConfig
    token_ids: list[int]
    digests: list[bytes]
    chunk: int = 0
    is_whole: bool = True
    adapter: LoadedAdapter | None = None


class LogitComparer:
    """Watches one drafted answer beside its plain one."""

    def __init__(self, plain: PlainAnswer) -> None:
        self.question = plain.question
        self.num_tokens = 0
        self.num_rows = 0
        self.num_rows_equal = 0
        self.divergence: Divergence | None = None
        self._plain = plain
        self._row: Float32Array | None = None

    def compare_row(self, request: Request, row: Float32Array) -> None:
        """Compare the row that the next token is chosen from; the token before is known by now."""
        self.compare_tokens(request)
        if self.divergence is None:
            position = request.num_output_tokens
            self.num_rows += 1
            self.num_rows_equal += self._plain.digests[position : position + 1] == [digest(row)]
            self._row = row.copy()

    def finish(self, request: Request) -> None:
        """Compare the tokens not seen yet, and the length."""
        self.compare_tokens(request)
        position = request.num_output_tokens
        if self.divergence is None and position < len(self._plain.token_ids):
            self.divergence = Divergence(self.question, position, self._plain.token_ids[position], None, None)

    @property
    def counts(self) -> Counts:
        """What was compared of this answer."""
        num_seeing = int(bool(self._plain.prompt.images) and self.num_tokens > 0)
        is_divergent = self.divergence is not None
        return Counts(self.num_tokens, int(is_divergent), self.num_rows, self.num_rows_equal, 0, 0, num_seeing)

    def compare_tokens(self, request: Request) -> None:
        """Compare the tokens emitted since the last call, up to the first divergence; all, of one that is given up."""
        plain_token_ids, drafted_token_ids = self._plain.token_ids, request.output_token_ids
        while self.divergence is None and self.num_tokens < len(drafted_token_ids):
            position = self.num_tokens
            drafted = drafted_token_ids[position]
            plain = plain_token_ids[position] if position < len(plain_token_ids) else None
            self.num_tokens += 1
            if drafted != plain:
                gap = None if self._row is None or plain is None else float(self._row[drafted] - self._row[plain])
                self.divergence = Divergence(self.question, position, plain, drafted, gap)


class WatchedTarget:
    """A `Target` that does what another does, and compares the rows of passes whose logits are read.

    num_rows: rows whose logits were read, those of rejected nodes too. num_rows_agreeing: those whose top ids and top
    logits are what the logits say, the lowest id of equals first.
    """

    def __init__(self, target: Target) -> None:
        self.num_rows = 0
        self.num_rows_agreeing = 0
        self.manifest, self.pass_facts = target.manifest, target.pass_facts
        self.provider, self.min_rows, self.pass_sizes = target.provider, target.min_rows, target.pass_sizes
        self.is_native, self.instructions = target.is_native, target.instructions
        self.new_cache, self.with_min_rows = target.new_cache, target.with_min_rows
        self.prefill_chunk, self.release_memory = target.prefill_chunk, target.release_memory
        self._target = target

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        return self.seen(self._target.forward(cache, wanted))

    def forward_two(self, cache: Cache, first: Pass, second: Pass) -> tuple[ForwardResult, InFlightPass]:
        """Of a `PipelinedTarget` that is watched."""
        result, behind = cast(PipelinedTarget, self._target).forward_two(cache, first, second)
        return self.seen(result), _WatchedPass(behind, self)

    def seen(self, result: ForwardResult) -> ForwardResult:
        """A pass's scores, compared now."""
        if result.logits is not None:
            agreeing = _agreeing(result, result.logits)
            self.num_rows += agreeing.size
            self.num_rows_agreeing += int(agreeing.sum())
        return result


class _WatchedPass:
    def __init__(self, behind: InFlightPass, watched: WatchedTarget) -> None:
        self._watched = watched
        self._behind = behind
        self.drop = behind.drop

    def result(self) -> ForwardResult:
        return self._watched.seen(self._behind.result())


class Tally:
    """What the comparers of one setting saw, job by job."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._answers: dict[int, Counts] = {}
        self._top_rows = Counts()
        self._stats = GenerationStats()
        self._divergences: list[Divergence] = []

    def add(self, comparers: dict[Request, LogitComparer], target: WatchedTarget) -> None:
        """Count what the comparers of one job saw."""
        self._stats = GenerationStats.total([self._stats, *(request.stats for request in comparers)])
        self._top_rows = Counts.total(
            [self._top_rows, Counts(top_rows=target.num_rows, top_rows_agreeing=target.num_rows_agreeing)]
        )
        for each in comparers.values():
            self._answers[each.question] = Counts.total([self._answers.get(each.question, Counts()), each.counts])
            if each.divergence is not None:
                self._divergences.append(each.divergence)

    def run(self, num_whole: int) -> ProofRun:
        """See ProofRun."""
        answers = {question: self._answers[question] for question in sorted(self._answers)}
        return ProofRun(
            self.setting,
            Counts.total([*answers.values(), self._top_rows]),
            answers,
            num_whole,
            self._stats.acceptance_length,
            dict(self._stats.drafted_by_source),
            dict(self._stats.accepted_by_source),
            tuple(self._divergences),
        )


def digest(row: Float32Array) -> bytes:
    """Tells any two different rows of logits apart."""
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def _agreeing(result: ForwardResult, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Whether each row's best successors are right, bool (B, R)."""
    top_ids, top_logits = result.top_ids, result.top_logits
    taken = np.take_along_axis(logits, np.clip(top_ids, 0, logits.shape[-1] - 1), axis=-1)
    is_first = top_ids[..., 0] == logits.argmax(axis=-1)
    is_complete = (logits > top_logits[..., -1:]).sum(axis=-1) < top_ids.shape[-1]
    steps = np.diff(top_logits, axis=-1)
    is_ordered = ((steps < 0) | (steps == 0) & (np.diff(top_ids, axis=-1) > 0)).all(axis=-1)
    is_taken = ((taken == top_logits) & (top_ids >= 0) & (top_ids < logits.shape[-1])).all(axis=-1)
    agreeing: npt.NDArray[np.bool_] = is_first & is_complete & is_ordered & is_taken
    return agreeing

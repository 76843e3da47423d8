"""Replaying recorded answers through a model's real passes: what would drafting save on its machine?

Every step is the decoder's own: draft, tree size by measured pass times, pass, verification, commit, guard. Only the
choice is taken from the recording. So the model's weights, and what it would say itself, play no part; nor do the
values in the KV cache, so the text before a stretch is not computed.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge.bench.replay import (
    MAX_DEPTH,
    Float32Array,
    RecordedRequest,
    ReplayResult,
    begin_or_extend,
    replay_answer,
)
from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.choosing.sampler import Sampler
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.planning.node_budget import NodeBudget
from reader_edge_runtime.decoding.sequence import Sequence as DecodingSequence
from reader_edge_runtime.drafting.core import DraftingCore, RequestCore
from reader_edge_runtime.drafting.drafter import RetrievalDrafter, RetrievalRequest
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.measuring.verify_cost import MAX_WIDTH, VerifyCost
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.target import Target

# Drafted nodes where an answer is only learned from: about what measured pass times choose.
_LEARNING_NODES = 16


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a recorded answer: it starts `start` tokens into the output of a request's turn."""

    request: int
    turn: int
    start: int


@dataclass(frozen=True, slots=True)
class StretchTimes:
    """A stretch decoded both ways.

    past: tokens before it. *_s: seconds by the clock on the wall, without the pass that gives the first token.
    *_tokens: tokens emitted in them; a drafted step may go beyond the stretch. stats: of the drafted way.
    """

    stretch: Stretch
    task: str
    past: int
    plain_s: float
    plain_tokens: int
    drafted_s: float
    drafted_tokens: int
    stats: GenerationStats


@dataclass(frozen=True, slots=True)
class ModelReplay:
    """One recording. num_left_out: stretches that the model's context could not hold."""

    times: tuple[StretchTimes, ...]
    num_left_out: int

    @property
    def plain_tokens_per_s(self) -> float:
        return sum(each.plain_tokens for each in self.times) / sum(each.plain_s for each in self.times)

    @property
    def drafted_tokens_per_s(self) -> float:
        return sum(each.drafted_tokens for each in self.times) / sum(each.drafted_s for each in self.times)

    @property
    def speedup(self) -> float:
        return self.drafted_tokens_per_s / self.plain_tokens_per_s

    @property
    def speedup_error(self) -> float:
        """Standard error of the speed-up as an estimate for the whole recording, by the jackknife over stretches."""
        n = len(self.times)
        if n < 2:
            return float("inf")
        others = [ModelReplay(self.times[:i] + self.times[i + 1 :], 0).speedup for i in range(n)]
        return float(np.std(others) * (n - 1) ** 0.5)

    @property
    def stats(self) -> GenerationStats:
        """Of the drafted way, all stretches together."""
        total = GenerationStats()
        for each in self.times:
            total.add(each.stats)
        return total

    def speedup_by_task(self) -> dict[str, float]:
        tasks = sorted({each.task for each in self.times})
        return {task: ModelReplay(tuple(e for e in self.times if e.task == task), 0).speedup for task in tasks}


class ForcedSampler(Sampler):
    """Makes the model's own choice, which costs what it costs, and says what was recorded instead."""

    def __init__(self, token_ids: Sequence[int], vocab_size: int) -> None:
        """token_ids: of prompt and answer; the answer is what gets chosen."""
        super().__init__(SamplingConfig(), vocab_size, ())
        self._recorded = token_ids

    def choose(self, logits: Float32Array, position: int) -> int:
        super().choose(logits, position)
        return self._recorded[position]

    @property
    def takes_best(self) -> bool:
        return True

    def take_best(self, best_id: int, position: int) -> int:
        return self._recorded[position]


class RehearsalDrafter(RetrievalDrafter):
    """Leaves answers out of its history: a stretch is decoded twice, and its whole answer learned after that.

    It does not draft from the successors that the model thinks likely: they are not those of the recorded model.
    parameters: what its mixture starts from, None for what is shipped.
    """

    def __init__(
        self, is_history_used: bool, parameters: Float32Array | None, datastores: Sequence[Datastore] = ()
    ) -> None:
        config = DraftConfig(max_depth=MAX_DEPTH, is_history_used=is_history_used, is_logits_used=False)
        super().__init__(config, datastores=datastores)
        self._parameters = parameters

    def begin(self, prompt_token_ids: Sequence[int]) -> RetrievalRequest:
        return _Rehearsal(self, prompt_token_ids)

    def loaded_core(self) -> DraftingCore:
        core = self.wait().core()
        assert core is not None
        if self._parameters is not None:
            core.parameters = self._parameters.copy()
        return core


class _Rehearsal(RetrievalRequest):
    def finish(self) -> None:
        return None


def choose_stretches(
    requests: Sequence[RecordedRequest], num_stretches: int, max_tokens: int, max_context: int
) -> tuple[list[Stretch], int]:
    """Stretches spread evenly over a recording, in its order, and how many candidates a context would not hold.

    Every answer is cut into stretches of max_tokens, so that all tokens are as likely to be among those chosen.
    """
    stretches, num_left_out = [], 0
    for r, request in enumerate(requests):
        past = 0
        for t, (prompt, output) in enumerate(request.turns):
            past += len(prompt)
            starts = range(0, max(1, len(output) - 1), max_tokens)  # the prefill gives a stretch's first token
            held = [start for start in starts if past + start + max_tokens + MAX_WIDTH <= max_context]
            stretches += [Stretch(r, t, start) for start in held]
            num_left_out += len(starts) - len(held)
            past += len(output)
    count = min(num_stretches, len(stretches))
    return [stretches[(2 * i + 1) * len(stretches) // (2 * count)] for i in range(count)], num_left_out


class ModelReplayer:
    """Replays one recording on a model. cost: the model's measured pass times. max_tokens: of a stretch."""

    def __init__(self, target: Target, cost: VerifyCost, drafter: RehearsalDrafter, max_tokens: int) -> None:
        self._core = drafter.loaded_core()
        self._decoder = Decoder(target, drafter, EngineConfig(max_batch=1))
        self._budgets = {is_drafted: NodeBudget(MAX_WIDTH) for is_drafted in (False, True)}
        for budget in self._budgets.values():
            budget.times.add(cost)
        self._max_tokens = max_tokens

    def replay(
        self, requests: Sequence[RecordedRequest], stretches: Sequence[Stretch], on_stretch: Callable[[], None]
    ) -> list[StretchTimes]:
        """Learn from all requests in order, from an empty history; decode the stretches both ways as they come.

        on_stretch: called after each.
        """
        wanted: dict[tuple[int, int], list[Stretch]] = {}
        for stretch in stretches:
            wanted.setdefault((stretch.request, stretch.turn), []).append(stretch)
        times: list[StretchTimes] = []
        for r, request in enumerate(requests):
            state: RequestCore | None = None
            context: list[int] = []
            for t, (prompt, output) in enumerate(request.turns):
                context += prompt
                for stretch in wanted.get((r, t), []):
                    ways = (False, True) if len(times) % 2 == 0 else (True, False)
                    times.append(self._rehearse(stretch, request.task, context, output, ways))
                    on_stretch()
                state = begin_or_extend(self._core, state, prompt)
                replay_answer(state, output, request.task, ReplayResult(), _LEARNING_NODES + 1)
                state.finish()
                context += output
        return times

    def _rehearse(
        self, stretch: Stretch, task: str, context: list[int], output: list[int], ways: tuple[bool, bool]
    ) -> StretchTimes:
        """Decode a stretch both ways, in the order given, and learn nothing from it."""
        learned = self._core.parameters.copy()
        text, past = context + output, len(context) + stretch.start
        seconds, sequences = {}, {}
        for is_drafted in ways:
            seconds[is_drafted], sequences[is_drafted] = self._decode(text, past, is_drafted)
        self._core.parameters[:] = learned
        plain, drafted = sequences[False].stats, sequences[True].stats
        return StretchTimes(
            stretch,
            task,
            past,
            seconds[False],
            plain.num_decoded_tokens,
            seconds[True],
            drafted.num_decoded_tokens,
            drafted,
        )

    def _decode(self, text: list[int], past: int, is_drafted: bool) -> tuple[float, DecodingSequence]:
        """Decode the stretch behind the first `past` tokens; seconds without the pass that gives its first token.

        The request goes to the text's end, so that the stretch's last drafts are as long as others, and is cancelled
        when it has come far enough.
        """
        decoder = self._decoder
        decoder.budget = self._budgets[is_drafted]
        config = GenerationConfig(max_tokens=len(text) - past, ignores_eos=True, is_drafted=is_drafted)
        decoder.skip_prefill(text[: past - 1])
        start = time.perf_counter()
        sampler = ForcedSampler(text, decoder.target.manifest.vocab_size)
        sequence = decoder.submit(text[:past], config, sampler=sampler)
        while sequence.finish_reason is None and sequence.num_output_tokens <= self._max_tokens:
            decoder.step()
        seconds = time.perf_counter() - start - sequence.stats.prefill_s
        decoder.cancel(sequence)
        return seconds, sequence

"""Decoding stretches of recorded answers on a model's real passes, plainly and drafted.

Every step is the decoder's own, tree sizes by measured pass times included; only the choice is taken from the
recording. So neither the model's weights nor the KV cache's values play a part: the text before is not computed.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from reader_edge.bench.recording import RecordedRequest
from reader_edge.bench.replay.replayed_request import MAX_DEPTH
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.assembly import make_trial_decoder
from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.choosing.sampler import Sampler
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.drafter import RequestContext
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter, RetrievalRequest
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.measuring.pass_cost import MAX_WIDTH, PassCost
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.target import Target


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a recorded answer: it starts `start` tokens into the output of a request's turn."""

    request: int
    turn: int
    start: int


@dataclass(frozen=True, slots=True)
class StretchTimes:
    """past: tokens before the stretch. *_s: wall-clock seconds, without the pass that gives the first token. plain,
    drafted: the statistics of that time; a drafted step may go beyond the stretch."""

    stretch: Stretch
    task: str
    past: int
    plain_s: float
    drafted_s: float
    plain: GenerationStats
    drafted: GenerationStats


def choose_stretches(
    requests: Sequence[RecordedRequest], num_stretches: int, max_tokens: int, max_context: int
) -> tuple[list[Stretch], int]:
    """Stretches spread evenly over a recording, in order, and how many candidates exceed the model's context.

    Candidates are all answers, cut into stretches of max_tokens: every token is as likely to be timed.
    """
    stretches, num_left_out = [], 0
    for r, request in enumerate(requests):
        past = 0
        for t, turn in enumerate(request.turns):
            past += len(turn.prompt)
            starts = range(0, max(1, len(turn.output) - 1), max_tokens)  # the prefill gives a stretch's first token
            held = [start for start in starts if past + start + max_tokens + MAX_WIDTH <= max_context]
            stretches += [Stretch(r, t, start) for start in held]
            num_left_out += len(starts) - len(held)
            past += len(turn.output)
    count = min(num_stretches, len(stretches))
    return [stretches[(2 * i + 1) * len(stretches) // (2 * count)] for i in range(count)], num_left_out


class ForcedSampler(Sampler):
    """Spends the time that choosing takes, then answers with the recorded token."""

    def __init__(self, token_ids: Sequence[int], vocab_size: int) -> None:
        """token_ids: prompt and recorded answer, by position."""
        super().__init__(SamplingConfig(), vocab_size, ())
        self._recorded = token_ids

    def peek(self, logits: Float32Array, position: int) -> int:
        super().peek(logits, position)
        return self._recorded[position]

    @property
    def takes_best(self) -> bool:
        return True

    def peek_best(self, best_id: int, position: int) -> int:
        return self._recorded[position]


class RehearsalDrafter(RetrievalDrafter):
    """A drafter that does not learn what it decodes: each stretch is decoded twice, then its whole answer is simulated.

    It does not draft from the target's likely successors either, which are not those of the model that was recorded.
    parameters: what its mixture starts from; None takes what is shipped.
    """

    def __init__(
        self, is_history_used: bool, parameters: Float32Array | None, datastores: Sequence[Datastore] = ()
    ) -> None:
        config = DraftConfig(max_depth=MAX_DEPTH, is_history_used=is_history_used, is_logits_used=False)
        super().__init__(config, datastores=datastores)
        self._parameters = parameters

    def begin(self, context: RequestContext) -> RetrievalRequest:
        return _Rehearsal(self, context)

    def loaded_core(self) -> DraftingCore:
        core = super().loaded_core()
        if self._parameters is not None:
            core.parameters = self._parameters.copy()
        return core


class _Rehearsal(RetrievalRequest):
    def finish(self) -> None:
        return None


class Rehearser:
    """Decodes stretches of max_tokens, and learns nothing from them; callers may teach `core` between them."""

    def __init__(self, target: Target, cost: PassCost, drafter: RehearsalDrafter, max_tokens: int) -> None:
        self.core = drafter.loaded_core()
        self._planners = {is_drafted: Planner() for is_drafted in (False, True)}
        for planner in self._planners.values():
            planner.take(cost)
        self._decoder = make_trial_decoder(target, drafter, EngineConfig(max_batch=1), self._planners[True])
        self._max_tokens = max_tokens

    def rehearse(
        self, stretch: Stretch, task: str, context: list[int], output: list[int], ways: tuple[bool, bool]
    ) -> StretchTimes:
        """Decode a stretch of `output`, which follows `context`. ways: is_drafted, in the order to decode in."""
        learned = self.core.parameters.copy()
        text, past = context + output, len(context) + stretch.start
        seconds, stats = {}, {}
        for is_drafted in ways:
            seconds[is_drafted], stats[is_drafted] = self._decode(text, past, is_drafted)
        self.core.parameters[:] = learned
        return StretchTimes(stretch, task, past, seconds[False], seconds[True], stats[False], stats[True])

    def _decode(self, text: list[int], past: int, is_drafted: bool) -> tuple[float, GenerationStats]:
        """Decode the stretch behind the first `past` tokens; seconds without the pass that gives its first token."""
        # To the text's end, so that the stretch's last drafts are as long as others; cancelled when it has come far.
        decoder = self._decoder
        decoder.planner = self._planners[is_drafted]
        config = GenerationConfig(max_tokens=len(text) - past, ignores_eos=True, is_drafted=is_drafted)
        decoder.skip_prefill(text[: past - 1])
        start = time.perf_counter()
        sampler = ForcedSampler(text, decoder.target.manifest.vocab_size)
        request = decoder.submit(text[:past], config, sampler=sampler)
        while request.is_running and request.num_output_tokens <= self._max_tokens:
            decoder.step()
        seconds = time.perf_counter() - start - request.stats.prefill_s
        decoder.cancel(request)
        if request.error is not None:
            raise request.error
        return seconds, request.stats

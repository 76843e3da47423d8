"""Decoding over pipeline stages: several microbatches, each with a pass of its own in flight, so that no machine waits.

One microbatch runs at a time, and lets the others go on while its pass is in flight; so they share drafter and planner,
as the requests of one decoder do. Which share a pass changes no token, as passes of any batch have the same bits.
"""

from bisect import insort

from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.cooperative_threads import CooperativeThread, yield_turn
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.draft_permission import UNCHECKED, DraftPermission
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.decoding.recorder import Recorder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.drafting.sources.text_slot import num_shared
from reader_edge_runtime.stats import StepTimes
from reader_edge_runtime.target import PipelinedTarget

_TRIP_TOKENS = 128  # of a prompt: known ones save about a pass, for which a microbatch may have one more request
_FEW = 3  # requests of a microbatch, from where on further microbatches are worth their passes


class Microbatch(Decoder):
    """A decoder that lets others go on between its requests' tokens and its prompts, so that no text waits for those.

    has_advanced: whether it did so since this was last read.
    """

    has_advanced = False

    @property
    def num_requests(self) -> int:
        num_back = sum(not request.is_held for request in self.scheduler.parked)
        return len(self.scheduler.owners) + len(self.waiting) + num_back

    def num_known(self, request: Request) -> int:
        """First tokens of a request, its last left out, that this microbatch has in its cache."""
        salt = request.salt
        return max((num_shared(text, request.token_ids) for text in self.scheduler.texts(salt)), default=0)

    def _advance(self) -> None:
        super()._advance()
        if self.waiting or self.scheduler.prefilling is not None:
            self.has_advanced = True
            yield_turn(lambda: True)


class PipelinedDecoder(Microbatch):
    """What a Decoder is, and its first microbatch; the others are made when requests come for them.

    A step is one of those microbatches that are done first; the others stay in flight until the next.
    """

    def __init__(
        self,
        target: PipelinedTarget,
        drafter: Drafter,
        config: EngineConfig,
        planner: Planner | None = None,
        near_tie_margin: float = 0.0,
        permission: DraftPermission = UNCHECKED,
    ) -> None:
        super().__init__(target, drafter, config, planner, near_tie_margin, permission)
        self.microbatches: list[Microbatch] = [self]
        self._pipeline = target
        self._turns: dict[Microbatch, CooperativeThread[list[Request]]] = {}
        self._held: list[Request] = []  # those that no microbatch has yet, by priority

    @property
    def all_running(self) -> list[Request]:
        return [request for microbatch in self.microbatches for request in microbatch.running]

    @property
    def num_kv_bytes(self) -> int:
        return sum(microbatch.cache.num_bytes for microbatch in self.microbatches)

    def enqueue(self, request: Request) -> None:
        self._begin(request)
        insort(self._held, request, key=lambda each: each.priority)

    def step(self) -> list[Request]:
        self._hand_to_microbatches()
        microbatches = [microbatch for microbatch in self.microbatches if microbatch.num_requests]
        self.planner.is_alone = not self._turns and len(microbatches) < 2
        if self.planner.is_alone:
            return self._of(microbatches[0]).step() if microbatches else []
        try:
            for microbatch in microbatches:
                if microbatch not in self._turns:
                    self._turns[microbatch] = turn = CooperativeThread(self._of(microbatch).step)
                    turn.go_on()
            while (advanced := self._take_advanced()) is None:
                self._go_on()
        except BaseException as interrupt:
            self._interrupt(interrupt)
            raise
        return advanced

    def cancel(self, request: Request) -> None:
        if request in self._held:
            self._held.remove(request)
        for microbatch in self.microbatches:
            if request in (*microbatch.scheduler.owners, *microbatch.waiting):
                self._rest(microbatch)
                return self._of(microbatch).cancel(request)
        super().cancel(request)

    def forget(self) -> None:
        for microbatch in self.microbatches:
            self._rest(microbatch)
            microbatch.slots.forget()
        super().forget()

    def _of(self, microbatch: Microbatch) -> Decoder:
        """A microbatch as the decoder that it is for itself."""
        return super() if microbatch is self else microbatch  # type: ignore[return-value]

    def _hand_to_microbatches(self) -> None:
        """Give the requests that there is room for to microbatches: idle ones, or those that know a request's text."""
        while self._held and sum(microbatch.num_requests for microbatch in self.microbatches) < self.config.max_batch:
            request = self._held.pop(0)
            burdens = [_burden(microbatch, request) for microbatch in self.microbatches]
            # A pass of several requests takes little longer than one: a link alone is no reason for passes of one.
            most = _FEW if len(self.microbatches) >= self._pipeline.num_stages else 0
            if min(burdens)[0] > most and len(self.microbatches) < self._pipeline.num_microbatches:
                self._new_microbatch().scheduler.enqueue(request)
            else:
                self.microbatches[burdens.index(min(burdens))].scheduler.enqueue(request)

    def _new_microbatch(self) -> Microbatch:
        new = Microbatch(self.target, self.drafter, self.config, self.planner, self.near_tie_margin, self.permission)
        new.prefill_budget, new.recorder = self.prefill_budget, _MicrobatchRecorder(self.recorder)
        new.on_logits = self.on_logits
        self.microbatches.append(new)
        return new

    def _take_advanced(self) -> list[Request] | None:
        """The requests of steps that are done, or have given tokens; None where all are in flight."""
        advanced, is_any = list[Request](), False
        for microbatch, turn in list(self._turns.items()):
            is_any |= turn.is_done or microbatch.has_advanced
            if turn.is_done:
                del self._turns[microbatch]
                advanced += turn.result()
            elif microbatch.has_advanced:
                advanced += microbatch.running
            microbatch.has_advanced = False
        return advanced if is_any else None

    def _go_on(self) -> None:
        """Let those microbatches go on that can, once there is one."""
        while not (ready := [turn for turn in self._turns.values() if turn.can_go_on]):
            self._pipeline.take_in()
        for turn in ready:
            turn.go_on()

    def _rest(self, microbatch: Microbatch) -> None:
        """Have a microbatch's step done: nothing of it may change while its pass is in flight."""
        while (turn := self._turns.get(microbatch)) is not None:
            if not turn.is_done:
                self._go_on()
            self._take_advanced()

    def _interrupt(self, interrupt: BaseException) -> None:
        """Have an interrupt cancel what owns a slot, in all microbatches, as in a decoder."""
        for turn in self._turns.values():
            while not turn.is_done:
                turn.go_on(interrupt)
        self._turns.clear()


class _MicrobatchRecorder(Recorder):
    """A microbatch's clock, whose steps count for all microbatches as well."""

    def __init__(self, whole: Recorder) -> None:
        super().__init__()
        self._whole = whole

    def end_step(self) -> StepTimes:
        times = super().end_step()
        self._whole.count(times)
        return times


def _burden(microbatch: Microbatch, request: Request) -> tuple[int, int]:
    """How much a request would wait for others in a microbatch; the least is the best microbatch."""
    num_known = microbatch.num_known(request)
    return microbatch.num_requests - num_known // _TRIP_TOKENS, -num_known

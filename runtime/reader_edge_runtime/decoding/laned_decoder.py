"""A decoder over links: several lanes, each with a pass of its own under way, so that no box waits for the others.

One lane runs at a time, and lets the others go on while its pass is under way; so they share drafter and planner, as
the requests of one decoder do. Which requests share a pass changes no token, as passes of any batch have the same bits.
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
from reader_edge_runtime.target import TravellingTarget

_TRIP_TOKENS = 128  # of a prompt: known ones save about a pass, for which a lane may have one more request
_FEW = 3  # requests of a lane, from where on further lanes are worth their passes


class Lane(Decoder):
    """A decoder that lets others go on between its requests' tokens and its prompts, so that no text waits for those.

    has_advanced: whether it did so since this was last read.
    """

    has_advanced = False

    @property
    def num_requests(self) -> int:
        num_back = sum(not request.is_held for request in self.scheduler.parked)
        return len(self.scheduler.owners) + len(self.waiting) + num_back

    def num_known(self, request: Request) -> int:
        """First tokens of a request, its last left out, that this lane has in its cache."""
        salt = request.config.cache_salt
        return max((num_shared(text, request.token_ids) for text in self.scheduler.texts(salt)), default=0)

    def _advance(self) -> None:
        super()._advance()
        if self.waiting or self.scheduler.prefilling is not None:
            self.has_advanced = True
            yield_turn(lambda: True)


class LanedDecoder(Lane):
    """What a Decoder is, and its first lane; the others are made when requests come for them.

    A step is one of those lanes that are done first; the others stay under way until the next.
    """

    def __init__(
        self,
        target: TravellingTarget,
        drafter: Drafter,
        config: EngineConfig,
        planner: Planner | None = None,
        near_tie_margin: float = 0.0,
        permission: DraftPermission = UNCHECKED,
    ) -> None:
        super().__init__(target, drafter, config, planner, near_tie_margin, permission)
        self.lanes: list[Lane] = [self]
        self._travelling = target
        self._turns: dict[Lane, CooperativeThread[list[Request]]] = {}
        self._held: list[Request] = []  # those that no lane has yet, by priority

    @property
    def all_running(self) -> list[Request]:
        return [request for lane in self.lanes for request in lane.running]

    @property
    def num_kv_bytes(self) -> int:
        return sum(lane.cache.num_bytes for lane in self.lanes)

    def enqueue(self, request: Request) -> None:
        self._begin(request)
        insort(self._held, request, key=lambda each: each.priority)

    def step(self) -> list[Request]:
        self._hand_to_lanes()
        lanes = [lane for lane in self.lanes if lane.num_requests]
        self.planner.is_alone = not self._turns and len(lanes) < 2
        if self.planner.is_alone:
            return self._of(lanes[0]).step() if lanes else []
        try:
            for lane in lanes:
                if lane not in self._turns:
                    self._turns[lane] = turn = CooperativeThread(self._of(lane).step)
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
        for lane in self.lanes:
            if request in (*lane.scheduler.owners, *lane.waiting):
                self._rest(lane)
                return self._of(lane).cancel(request)
        super().cancel(request)

    def forget(self) -> None:
        for lane in self.lanes:
            self._rest(lane)
            lane.slots.forget()
        super().forget()

    def _of(self, lane: Lane) -> Decoder:
        """A lane as the decoder that it is for itself."""
        return super() if lane is self else lane  # type: ignore[return-value]

    def _hand_to_lanes(self) -> None:
        """Give the requests that there is room for to lanes: idle ones, or those that know a request's text."""
        while self._held and sum(lane.num_requests for lane in self.lanes) < self.config.max_batch:
            request = self._held.pop(0)
            burdens = [_burden(lane, request) for lane in self.lanes]
            # A pass of several requests takes little longer than one: a link alone is no reason for passes of one.
            most = _FEW if len(self.lanes) >= self._travelling.num_stages else 0
            if min(burdens)[0] > most and len(self.lanes) < self._travelling.num_lanes:
                self._new_lane().scheduler.enqueue(request)
            else:
                self.lanes[burdens.index(min(burdens))].scheduler.enqueue(request)

    def _new_lane(self) -> Lane:
        lane = Lane(self.target, self.drafter, self.config, self.planner, self.near_tie_margin, self.permission)
        lane.prefill_budget, lane.recorder = self.prefill_budget, _LaneRecorder(self.recorder)
        lane.on_logits = self.on_logits
        self.lanes.append(lane)
        return lane

    def _take_advanced(self) -> list[Request] | None:
        """The requests of steps that are done, or have given tokens; None where all are under way."""
        advanced, is_any = list[Request](), False
        for lane, turn in list(self._turns.items()):
            is_any |= turn.is_done or lane.has_advanced
            if turn.is_done:
                del self._turns[lane]
                advanced += turn.result()
            elif lane.has_advanced:
                advanced += lane.running
            lane.has_advanced = False
        return advanced if is_any else None

    def _go_on(self) -> None:
        """Let those lanes go on that can, once there is one."""
        while not (ready := [turn for turn in self._turns.values() if turn.can_go_on]):
            self._travelling.take_in()
        for turn in ready:
            turn.go_on()

    def _rest(self, lane: Lane) -> None:
        """Have a lane's step done: nothing of it may change while its pass is under way."""
        while (turn := self._turns.get(lane)) is not None:
            if not turn.is_done:
                self._go_on()
            self._take_advanced()

    def _interrupt(self, interrupt: BaseException) -> None:
        """Have an interrupt cancel what owns a slot, in all lanes, as in a decoder."""
        for turn in self._turns.values():
            while not turn.is_done:
                turn.go_on(interrupt)
        self._turns.clear()


class _LaneRecorder(Recorder):
    """A lane's clock, whose steps count for all lanes as well."""

    def __init__(self, whole: Recorder) -> None:
        super().__init__()
        self._whole = whole

    def end_step(self) -> StepTimes:
        times = super().end_step()
        self._whole.count(times)
        return times


def _burden(lane: Lane, request: Request) -> tuple[int, int]:
    """How much a request would wait for others in a lane; the least is the best lane."""
    num_known = lane.num_known(request)
    return lane.num_requests - num_known // _TRIP_TOKENS, -num_known

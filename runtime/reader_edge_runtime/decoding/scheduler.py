"""Who waits, whose prompt is being scored, and who decodes in which KV slot."""

from bisect import insort
from collections import deque

from reader_edge_runtime.decoding.kv_budget import KvBudget
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.slots import Slots


class Scheduler:
    """running[i] owns slot i and decodes; prefilling, where there is one, owns the slot behind them.

    waiting: by priority, then first come, first served; one that does not fit yet is waited for.
    running: the same list for good.
    """

    def __init__(self, slots: Slots, kv_budget: KvBudget) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.prefilling: Request | None = None
        self._slots = slots
        self._kv_budget = kv_budget

    @property
    def owners(self) -> list[Request]:
        """All requests that own slots, in the slots' order."""
        return [*self.running, self.prefilling] if self.prefilling is not None else list(self.running)

    def texts(self) -> list[list[int]]:
        """The tokens whose rows each slot holds, in the slots' order."""
        lengths = self._slots.lengths
        owned = [owner.token_ids[: lengths[slot]] for slot, owner in enumerate(self.owners)]
        return owned + self._slots.idle_texts()

    def enqueue(self, request: Request) -> None:
        """Have a request wait behind those of its priority."""
        insort(self.waiting, request, key=lambda each: each.priority)

    def next_prompt(self) -> Request | None:
        """The request whose prompt is being scored, else the first in line if there is room for it."""
        if self.prefilling is not None or not self.waiting or self._slots.is_full:
            return self.prefilling
        return self.waiting.popleft() if self._kv_budget.fits([*self.running, self.waiting[0]]) else None

    def admit(self, request: Request) -> None:
        """Give the next slot to a request whose prompt is to be scored, with what the cache holds of it already.

        Raises ConfigError where memory is short; then nobody's slot has changed.
        """
        running = [each.token_ids for each in self.running]
        known = request.reusable_token_ids
        self._slots.bring_forward(known, running)
        with self._slots.resizing():
            self._kv_budget.make_room([*self.running, request])
        self.prefilling = request
        request.stats.num_reused_tokens = self._slots.acquire(known, running)

    def promote(self) -> None:
        """Let the prefilling request decode."""
        if self.prefilling is not None:
            self.running.append(self.prefilling)
            self.prefilling = None

    def take_ended(self) -> list[Request]:
        """Take the slots from the requests that have ended, and return those."""
        if self.prefilling is not None and not self.prefilling.is_running:
            self.promote()
        ended = []
        for slot in reversed(range(len(self.running))):
            request = self.running[slot]
            if not request.is_running:
                self._slots.release(slot, request.token_ids, self.prefilling is not None)
                self.running[slot] = self.running[-1]
                self.running.pop()
                ended.append(request)
        return ended

    def drop_torn(self) -> None:
        """After an interrupt during a change of slots, trust none of them: their owners end."""
        if not self._slots.is_torn and self._slots.num_running == len(self.owners):
            return
        for request in self.owners:
            request.finish_reason = request.finish_reason or "cancelled"
        self.running.clear()
        self.prefilling = None
        self._slots.reset()

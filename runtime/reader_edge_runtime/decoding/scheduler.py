"""The scheduler: which requests wait, which are prefilled, and which decode in which KV slot."""

from bisect import insort, insort_left
from collections import deque
from collections.abc import Callable

from reader_edge_runtime.decoding.kv_budget import KvBudget
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.slots import KeptText, Slots


class Scheduler:
    """running[i] owns slot i and decodes; prefilling, where there is one, owns the slot behind them.

    waiting: by priority, then first come, first served; one that does not fit yet is waited for.
    running: the same list for good. parked: requests without slots, whose remote clients are away.
    """

    def __init__(self, slots: Slots, kv_budget: KvBudget) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.prefilling: Request | None = None
        self.parked: list[Request] = []
        self._slots = slots
        self._kv_budget = kv_budget

    @property
    def owners(self) -> list[Request]:
        """All requests that own slots, in the slots' order."""
        return [*self.running, self.prefilling] if self.prefilling is not None else list(self.running)

    def texts(self, salt: str = "") -> list[list[int]]:
        """The tokens whose rows each slot holds, in the slots' order; none of a text of another salt."""
        owned = [KeptText(owner.token_ids, owner.salt) for owner in self.owners]
        texts = zip(owned + self._slots.idle_texts(), self._slots.lengths, strict=False)
        return [text.token_ids[:length] if text.salt == salt else [] for text, length in texts]

    def enqueue(self, request: Request) -> None:
        """Have a request wait behind those of its priority."""
        insort(self.waiting, request, key=lambda each: each.priority)

    def arrange(self) -> list[Request]:
        """Those that take part in the next step, brought to the first slots; the others wait for drafts of clients.

        A request whose client is away gives up its slot, or its place in line. When the client is back, the request is
        the first in line of its priority.
        """
        for request in [each for each in self.parked if not each.is_held]:
            self.parked.remove(request)
            if request.is_running:
                insort_left(self.waiting, request, key=lambda each: each.priority)
        self.parked += self._take(lambda request: request.is_held)
        for request in [each for each in self.waiting if each.is_held]:
            self.waiting.remove(request)
            self.parked.append(request)
        first = 0
        for slot, request in enumerate(self.running):
            if request.can_go_on:
                if slot != first:
                    self._slots.exchange(first, slot)
                    self.running[slot], self.running[first] = self.running[first], request
                first += 1
        return self.running[:first]

    def next_prompt(self) -> Request | None:
        """The request whose prompt is being scored, else the first in line if it need not wait for room."""
        if self.prefilling is not None or not self.waiting or self._slots.is_full:
            return self.prefilling
        return self.waiting.popleft() if self._kv_budget.is_in_turn(self.waiting[0], self.running) else None

    def admit(self, request: Request) -> None:
        """Give the next slot to a request whose prompt is to be scored, with what the cache holds of it already.

        Raises ConfigError where memory is short, and CapacityError for what has come not to fit any more; then nobody's
        slot has changed.
        """
        self._kv_budget.check(request)
        running = [KeptText(each.token_ids, each.salt) for each in self.running]
        known = KeptText(request.reusable_token_ids, request.salt)
        self._slots.bring_forward(known, running)
        with self._slots.resizing():
            self._kv_budget.make_room([*self.running, request])
        self.prefilling = request
        num_reused = self._slots.acquire(known, running, request.images)
        if not request.num_output_tokens:
            request.stats.num_reused_tokens = num_reused

    def promote(self) -> None:
        """Let the prefilling request decode."""
        if self.prefilling is not None:
            self.running.append(self.prefilling)
            self.prefilling = None

    def take_ended(self) -> list[Request]:
        """Take the slots from the requests that have ended, and return those."""
        if self.prefilling is not None and not self.prefilling.is_running:
            self.promote()
        return self._take(lambda request: not request.is_running)

    def _take(self, leaves: Callable[[Request], bool]) -> list[Request]:
        """Take the slots from those of the running requests that leave, and return these."""
        taken = []
        for slot in reversed(range(len(self.running))):
            request = self.running[slot]
            if leaves(request):
                text = KeptText(request.token_ids, request.salt)
                self._slots.release(slot, text, self.prefilling is not None)
                self.running[slot] = self.running[-1]
                self.running.pop()
                taken.append(request)
        return taken

    def drop_torn(self) -> None:
        """After an interrupt during a change of slots, trust none of them: their owners end."""
        if not self._slots.is_torn and self._slots.num_running == len(self.owners):
            return
        for request in self.owners:
            request.finish_reason = request.finish_reason or "cancelled"
        self.running.clear()
        self.prefilling = None
        self._slots.reset()

"""Which KV slot serves whom: running sequences in the first slots, side by side, past prompts kept in the others."""

from reader_edge_runtime.target import Cache


class Slots:
    """Running sequences own slots 0 .. num_running - 1; the idle ones behind remember their tokens for reuse.

    is_torn: an interrupt came amid a change, so that no slot can be trusted until `reset`.
    """

    def __init__(self, cache: Cache, max_slots: int) -> None:
        self._cache = cache
        self._max_slots = max_slots
        self._idle_token_ids: list[list[int]] = [[] for _ in range(cache.num_slots)]
        self.num_running = 0
        self.is_torn = False

    @property
    def is_full(self) -> bool:
        return self.num_running == self._max_slots

    def make_room(self) -> None:
        """Have a slot for one more sequence. Raises ConfigError where memory is short."""
        self._cache.reserve(self.num_running + 1, self._cache.capacity)
        while len(self._idle_token_ids) < self._cache.num_slots:
            self._idle_token_ids.append([])

    def acquire(self, token_ids: list[int]) -> int:
        """Give slot `num_running` to a new sequence and return how many of its first tokens it holds already.

        There is one, after `make_room`. The last token is never reused: its logits are what decoding starts from.
        """
        self.is_torn = True
        slot = self.num_running
        shared = [_num_shared(kept, token_ids[:-1]) for kept in self._idle_token_ids[slot:]]
        best = slot + max(range(len(shared)), key=lambda i: (shared[i], -len(self._idle_token_ids[slot + i])))
        self._cache.swap(slot, best)
        idle = self._idle_token_ids
        idle[slot], idle[best] = [], idle[slot] if best != slot else []
        num_reused = shared[best - slot]
        self._cache.lengths[slot] = num_reused
        self.num_running += 1
        self.is_torn = False
        return num_reused

    def release(self, slot: int, token_ids: list[int], is_last_apart: bool = False) -> None:
        """Make a running slot idle; the last running slot takes its place.

        is_last_apart: the last one stays behind all others, so the one before it takes the place.
        """
        self.is_torn = True
        last = self.num_running - 1
        kept = token_ids[: self._cache.lengths[slot]]
        self._cache.swap(slot, last - is_last_apart)
        self._cache.swap(last - is_last_apart, last)
        self._idle_token_ids[last] = kept
        self.num_running -= 1
        self.is_torn = False

    def reset(self) -> None:
        """Make all slots idle, and forget what they hold."""
        self.num_running = 0
        self._idle_token_ids = [[] for _ in range(self._cache.num_slots)]
        self.forget()
        self.is_torn = False

    def fill(self, token_ids: list[int]) -> None:
        """Let the first idle slot hold these tokens, with made-up rows."""
        self._cache.fill(self.num_running, len(token_ids))
        self._idle_token_ids[self.num_running] = token_ids

    def forget(self) -> None:
        """Drop what idle slots remember."""
        for slot in range(self.num_running, self._cache.num_slots):
            self._cache.lengths[slot] = 0
            self._idle_token_ids[slot] = []


def _num_shared(kept: list[int], token_ids: list[int]) -> int:
    limit = min(len(kept), len(token_ids))
    return next((i for i in range(limit) if kept[i] != token_ids[i]), limit)

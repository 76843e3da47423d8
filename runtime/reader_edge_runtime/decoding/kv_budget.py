"""The memory limit of the KV cache, and which requests fit into it together."""

from collections.abc import Sequence

from reader_edge_runtime.cache import Cache
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import CapacityError

_MIN_TREE_NODES = 8  # a bound on memory makes no draft tree smaller
FIRST_CAPACITY = 256  # rows of a new cache, and for an answer's beginning where nothing bounds it


class KvBudget:
    """Rows of a cache, over all its slots.

    A cache of pages takes the sum of what its slots hold, a dense one as many times the longest as it has slots.
    max_bytes: of the cache; 0 for any number. While a dense one moves to another size, the rows in use are there twice.
    max_slots: requests that run together at most. widest: nodes that a draft tree is to have, whose rows come on top of
    the text's. max_nodes: those that it may have. They are fewer where recurrent layers would keep so much for an
    accepted path that few requests had room.
    """

    def __init__(self, cache: Cache, max_bytes: int, max_slots: int, widest: int, max_context: int) -> None:
        self._cache = cache
        self._max_bytes = max_bytes
        self._max_slots = max_slots
        self.max_nodes = widest if max_bytes else max_context
        self._max_context = max_context
        if max_bytes:
            cache.reserve_addresses(max_slots)
            cache.max_pending = widest
            while not cache.is_cut_anywhere and self.max_nodes > _MIN_TREE_NODES and self._is_crowded():
                cache.max_pending = self.max_nodes = max(_MIN_TREE_NODES, self.max_nodes // 2)
            if cache.num_bytes > max_bytes:
                cache.resize(1, 1)

    def check(self, request: Request) -> None:
        """Raise CapacityError for a request that would not even fit alone."""
        num_bytes = self._num_bytes([self._num_rows(request)])
        if self._max_bytes and num_bytes > self._max_bytes:
            raise CapacityError(
                f"Prompt and answer of up to {request.max_length} tokens need {_readable(num_bytes)} of KV cache, "
                f"which may have {_readable(self._max_bytes)}: shorten the prompt, ask for fewer tokens or raise "
                "max_kv_bytes (--kv-bytes)."
            )

    def is_in_turn(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether a request fits beside those that run, however long all answers become; or not even alone.

        Nothing that ends would bring the turn of such a one: `check` refuses it instead.
        """
        return not self._max_bytes or self._fits([*running, request]) or not self._fits([request])

    def make_room(self, requests: Sequence[Request]) -> None:
        """Have a slot for each of these requests, which fit. Raises ConfigError where memory is short.

        Idle slots, and rows that nobody needs any more, stay as long as they are not in the way. Then those go that are
        behind the longest request's, and then slot by slot, those that ended long ago first: mostly the last ones.
        """
        cache, num_slots = self._cache, self._num_slots(len(requests))
        if not self._max_bytes:
            # Once for the whole prompt and some of the answer: growing copies.
            num_rows = min(requests[-1].num_prompt_tokens + FIRST_CAPACITY, self._max_context)
            cache.check_free(len(requests) - 1, num_rows)  # also where others' texts are as long
            self._reserve(num_slots, num_rows)
            return
        needed = list(map(self._num_rows, requests))
        capacity = max(cache.capacity, *needed)
        if self._num_taken(needed, max(cache.num_slots, len(needed)), capacity) > self._max_bytes:
            capacity = max(needed)
        while num_slots > len(needed) and self._num_taken(needed, num_slots, capacity) > self._max_bytes:
            num_slots -= 1
        cache.resize(num_slots, capacity)
        cache.limit_checkpoints(max(0, self._max_bytes - self._num_taken(needed, num_slots, capacity)))

    def make_room_for(self, lengths: Sequence[int], num_pending: int) -> None:
        """Have slots for texts of these lengths. num_pending: as `Cache.max_pending`, of these texts.

        Raises CapacityError, and ConfigError where memory is short.
        """
        cache, num_slots, capacity = self._cache, max(len(lengths), 1), max([1, *lengths])
        if not self._max_bytes:
            self._reserve(num_slots, capacity)
            return
        former, cache.max_pending = cache.max_pending, max(cache.max_pending, num_pending)
        needed = self._num_bytes(lengths or [1])
        if needed > self._max_bytes:
            cache.max_pending = former
            raise CapacityError(f"it needs {_readable(needed)} of KV cache: raise max_kv_bytes (--kv-bytes).")
        cache.resize(num_slots, capacity)
        cache.limit_checkpoints(self._max_bytes - needed)

    def _reserve(self, num_slots: int, capacity: int) -> None:
        if num_slots > 1:
            self._cache.reserve_addresses(self._max_slots)
        self._cache.reserve(num_slots, capacity)

    def _num_taken(self, needed: Sequence[int], num_slots: int, capacity: int) -> int:
        """Bytes of slots for requests that need so many rows, and of idle ones behind them."""
        idle = [min(length, capacity) for length in self._cache.lengths[len(needed) : num_slots]]
        num_new = num_slots - len(needed) - len(idle)
        return self._cache.num_bytes_of([*needed, *idle, *[0] * num_new], capacity)

    def _is_crowded(self) -> bool:
        """Whether less than half of the memory is left for rows where as many requests run as may."""
        return 2 * self._num_bytes([1] * self._max_slots) > self._max_bytes

    def _fits(self, requests: Sequence[Request]) -> bool:
        return self._num_bytes(list(map(self._num_rows, requests))) <= self._max_bytes

    def _num_bytes(self, lengths: Sequence[int]) -> int:
        return self._cache.num_bytes_of(lengths, max(lengths))

    def _num_slots(self, num_requests: int) -> int:
        """Those there are, or twice as many: a cache that grew slot by slot would copy each text as often."""
        num_slots = self._cache.num_slots
        return num_slots if num_requests <= num_slots else max(num_requests, min(2 * num_slots, self._max_slots))

    def _num_rows(self, request: Request) -> int:
        return min(request.max_length + self.max_nodes, self._max_context)


def _readable(num_bytes: int) -> str:
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    return f"{num_bytes / 1e6:.3g} MB" if num_bytes >= 100_000 else f"{num_bytes / 1e3:.3g} kB"

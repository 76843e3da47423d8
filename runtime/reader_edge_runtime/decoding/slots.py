"""KV slots: running sequences in the first ones, side by side; past prompts kept for reuse in the others."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from reader_edge_runtime.cache import Cache
from reader_edge_runtime.decoding.prefix_cache import CHUNK, PrefixCache
from reader_edge_runtime.decoding.prompt_images import PromptImages


class KeptText(NamedTuple):
    """A text whose rows a slot has. salt: of its request; texts of different ones share nothing."""

    token_ids: list[int]
    salt: str = ""


_NO_TEXT = KeptText([])

# Last tokens of a prompt that recurrent states are not moved over when it is scored. The same prompt may come again,
# whose last one is scored again; a next turn may leave out what opened the answer, as "<think>".
LOOSE_END = 8

# A text of recurrent layers can only be cut back to places that were noted, each of which takes memory.
_PLACE_EVERY = 512  # tokens of a prompt
_FAR = 64  # tokens from the last place within what texts share, from where on the end of that is one, too


class Slots:
    """Running sequences own slots 0 .. num_running - 1; the idle ones behind remember their tokens for reuse.

    is_torn: an interrupt came during a change, so that no slot can be trusted until `reset`. prefixes: what is kept of
    texts on disk, too; None where nothing is.
    """

    def __init__(self, cache: Cache, max_slots: int) -> None:
        self._cache = cache
        self._max_slots = max_slots
        self._idle = [_NO_TEXT] * cache.num_slots
        self.num_running = 0
        self.is_torn = False
        self.prefixes: PrefixCache | None = None
        self._longest_shared = 0  # tokens that the newest sequence's prompt shares with some text
        self._parting = 0  # where the prompt's last image ends, or the same, if there was no place near

    @property
    def is_full(self) -> bool:
        return self.num_running == self._max_slots

    @property
    def lengths(self) -> list[int]:
        """Committed rows of each slot."""
        return self._cache.lengths

    @contextmanager
    def resizing(self) -> Iterator[None]:
        """While the cache changes its size: an interrupt leaves slots torn, an error as they were."""
        self.is_torn = True
        try:
            yield
        except Exception:
            self.is_torn = False
            raise
        self.is_torn = False

    def bring_forward(self, text: KeptText, running: Sequence[KeptText]) -> None:
        """Bring the idle slot that holds most of a text to where the next sequence begins.

        Where a running sequence (see `acquire`) holds as much, that is the slot whose loss matters least.
        """
        self._fit()
        idle, slot = self._idle, self.num_running
        self._longest_shared = 0
        if slot == self._cache.num_slots:
            return
        _, num_copied = self._most_shared(running, text)
        shared = [self._num_usable(other, idle[other], text) for other in range(slot, self._cache.num_slots)]
        useful = [num if num > num_copied else 0 for num in shared]
        best = slot + max(range(len(useful)), key=lambda i: (useful[i], -len(idle[slot + i].token_ids)))
        self.is_torn = True
        self._cache.swap(slot, best)
        idle[slot], idle[best] = idle[best], idle[slot]
        self.is_torn = False

    def acquire(self, text: KeptText, running: Sequence[KeptText], images: PromptImages | None = None) -> int:
        """Give slot `num_running`, which is there, to a new sequence; returns how many of its first tokens it holds.

        running: the texts of the sequences in the first slots, whose rows are copied where they hold more of the text.
        The last token is never reused: its logits are what decoding starts from. images: those of the text.
        """
        self.is_torn = True
        self._fit()
        slot = self.num_running
        num_shared = self._num_shared(slot, self._idle[slot], text)
        source, num_copied = self._most_shared(running, text)
        self._idle[slot] = _NO_TEXT
        num_reused = self._cut(slot, num_shared)
        if num_copied > num_reused:
            num_reused = self._cache.copy(source, slot, num_copied)
        self._cache.checkpoint(slot)
        if self.prefixes is not None:
            num_reused = self.prefixes.load(self._cache, slot, text.token_ids, text.salt, num_reused)
            self._cache.checkpoint(slot)
        while images is not None and images.usable(num_reused) < num_reused:
            num_reused = self._cut(slot, images.usable(num_reused))
        ends = (0 if images is None else images.end), self._longest_shared
        self._parting = next((end for end in map(self._aligned, ends) if end >= num_reused + _FAR), 0)
        self.num_running += 1
        self.is_torn = False
        return num_reused

    def chunk_end(self, start: int, size: int, num_prompt_tokens: int) -> int:
        """Where a chunk of so many tokens of the newest sequence's prompt ends: at a place, if there is to be one."""
        end = min(start + size, num_prompt_tokens)
        if self._cache.is_cut_anywhere:
            return end
        loose = num_prompt_tokens - LOOSE_END
        places = [self._parting]
        if self.prefixes is not None:
            places += [(start // _PLACE_EVERY + 1) * _PLACE_EVERY, self._aligned(loose)]
        if ahead := [place for place in places if start < place < end]:
            return min(ahead)
        return loose if start < loose < end < num_prompt_tokens else end

    def note_chunk(self, start: int, prompt: KeptText) -> None:
        """Note a place behind a chunk of the newest sequence's prompt, if it is one to come back to."""
        slot = self.num_running - 1
        end, num_tokens = self._cache.lengths[slot], len(prompt.token_ids)
        is_place = end in (num_tokens, self._parting) or end // _PLACE_EVERY > start // _PLACE_EVERY
        if is_place or (self.prefixes is not None and end == self._aligned(num_tokens - LOOSE_END)):
            self._cache.checkpoint(slot)
        if self.prefixes is not None:
            self.prefixes.save(self._cache, slot, *prompt, start)

    def exchange(self, slot: int, other: int) -> None:
        """Let two running sequences change places."""
        self.is_torn = True
        self._cache.swap(slot, other)
        self.is_torn = False

    def release(self, slot: int, text: KeptText, is_last_apart: bool = False) -> None:
        """Make a running slot idle; the last running slot takes its place.

        is_last_apart: the last one stays behind all others, so the one before it takes the place.
        """
        self.is_torn = True
        last = self.num_running - 1
        kept = text._replace(token_ids=text.token_ids[: self._cache.lengths[slot]])
        if self.prefixes is not None:
            self.prefixes.save(self._cache, slot, *kept)
        self._cache.swap(slot, last - is_last_apart)
        self._cache.swap(last - is_last_apart, last)
        self._cache.trim(last)
        self._idle[last] = kept
        self.num_running -= 1
        self.is_torn = False

    def reset(self) -> None:
        """Make all slots idle, and forget what they hold."""
        self.num_running = 0
        self._idle = [_NO_TEXT] * self._cache.num_slots
        self.forget()
        self.is_torn = False

    def idle_texts(self) -> list[KeptText]:
        """What each idle slot holds, in the slots' order."""
        self._fit()
        places = range(self.num_running, self._cache.num_slots)
        texts = [(self._idle[slot], self._cache.lengths[slot]) for slot in places]
        return [text._replace(token_ids=text.token_ids[:length]) for text, length in texts]

    def remember(self, texts: list[list[int]]) -> None:
        """While nothing runs: the first slots hold these texts, whose rows are written."""
        self._idle[: len(texts)] = map(KeptText, texts)

    def fill(self, token_ids: list[int]) -> None:
        """Let the first idle slot hold these tokens, with made-up rows, of which none goes to disk."""
        self.prefixes = None
        self._cache.fill(self.num_running, len(token_ids))
        self._idle[self.num_running] = KeptText(token_ids)

    def forget(self) -> None:
        """Drop what idle slots remember."""
        for slot in range(self.num_running, self._cache.num_slots):
            self._cut(slot, 0)
            self._idle[slot] = _NO_TEXT

    def _aligned(self, length: int) -> int:
        """As many of a text's first tokens as whole chunks on disk have."""
        return length if self.prefixes is None else length - length % CHUNK

    def _cut(self, slot: int, length: int) -> int:
        """Keep the first rows of a slot alone, as many as can be gone on from; returns how many."""
        length = self._cache.cut(slot, length)
        self._cache.trim(slot)
        return length

    def _fit(self) -> None:
        """Follow a cache that has changed its size."""
        del self._idle[self._cache.num_slots :]
        self._idle += [_NO_TEXT] * (self._cache.num_slots - len(self._idle))

    def _most_shared(self, texts: Sequence[KeptText], wanted: KeptText) -> tuple[int, int]:
        """The slot of the sequence, of those in the first slots, that holds most of a text, and how much of it."""
        shared = [self._num_usable(slot, text, wanted) for slot, text in enumerate(texts)]
        return max(enumerate(shared), key=lambda found: found[1], default=(0, 0))

    def _num_usable(self, slot: int, kept: KeptText, wanted: KeptText) -> int:
        """How many of a text's first tokens, without its last, a slot that holds other ones can be gone on from."""
        num_shared = self._num_shared(slot, kept, wanted)
        self._longest_shared = max(self._longest_shared, num_shared)
        return self._cache.usable(slot, num_shared)

    def _num_shared(self, slot: int, kept: KeptText, wanted: KeptText) -> int:
        """How many of a text's first tokens, without its last, a slot holds that has the rows of other ones."""
        if kept.salt != wanted.salt:
            return 0
        held, token_ids = kept.token_ids, wanted.token_ids
        limit = min(len(held), self._cache.lengths[slot], len(token_ids) - 1)
        return next((i for i in range(limit) if held[i] != token_ids[i]), limit)

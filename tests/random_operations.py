"""Random operations on the slots of a cache: logits and contents must have the bits of plain decoding."""

import numpy as np

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.target import Pass, Target
from tests.hybrid_states import fresh, kept, path_to, random_tree, score, single_logits

_NUM_SLOTS = 4
_LONGEST = 80  # texts are cut behind so many tokens
_OPERATIONS = ("tree",) * 4 + ("prefill", "dropped_pass", "cut", "copy", "swap", "place", "growth")


def check_random_operations(target: Target, seed: int, num_operations: int) -> int:
    """How many rows of logits were compared, all of them equal; in the end every slot holds what a prefill leaves."""
    walk = _Walk(target, seed)
    for _ in range(num_operations):
        walk.step()
    walk.check_slots()
    return walk.num_rows


class _Walk:
    """texts: what each slot must hold by now."""

    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self._vocab_size = target.manifest.vocab_size
        self._rng = np.random.default_rng(seed)
        self._cache, self._single = target.new_cache(_NUM_SLOTS, 16), target.new_cache(1, 16)
        self._texts: list[list[int]] = [[] for _ in range(_NUM_SLOTS)]
        self.num_rows = 0

    def step(self) -> None:
        slot = self._number(0, _NUM_SLOTS)
        if len(self._texts[slot]) > _LONGEST:
            self._cut_to(slot, self._number(0, _LONGEST))
        getattr(self, f"_{self._rng.choice(_OPERATIONS)}")(slot)
        assert self._cache.lengths == list(map(len, self._texts))

    def check_slots(self) -> None:
        for slot, text in enumerate(self._texts):
            assert kept(self._target, self._cache, slot) == fresh(self._target, text, self._number(1, 65))

    def _tree(self, slot: int) -> None:
        """Trees on a slot and some behind it, of each of which a part of a path is accepted."""
        slots, num_kept = range(slot, self._number(slot, _NUM_SLOTS) + 1), self._number(0, 2)
        trees = [random_tree(self._rng, self._number(1, 17), self._vocab_size) for _ in slots]
        wanted = Pass(slot, trees, [range(len(tree)) for tree in trees], wants_logits=True, num_kept=num_kept)
        logits = self._target.forward(self._cache, wanted).wanted_logits.copy()
        for each, tree, found in zip(slots, trees, logits, strict=True):
            path = path_to(tree, self._number(0, len(tree)))
            tokens = [tree.token_ids[node] for node in path]
            self._single.cut(0, 0)
            score(self._target, self._single, 0, self._texts[each], self._number(1, 33))
            expected = single_logits(self._target, self._single, 0, tokens)
            assert expected == [found[node].tobytes() for node in path]
            self.num_rows += len(path)
            num_accepted = self._number(num_kept, len(path) + 1)
            self._cache.commit(each, path[:num_accepted])
            self._texts[each] += tokens[:num_accepted]

    def _prefill(self, slot: int) -> None:
        tokens = self._rng.integers(self._vocab_size, size=self._number(1, 50)).tolist()
        score(self._target, self._cache, slot, tokens, self._number(1, 33))
        self._texts[slot] += tokens

    def _dropped_pass(self, slot: int) -> None:
        """One whose nodes are not committed, as after an interrupt."""
        num_kept = self._number(0, 2)
        self._target.forward(self._cache, Pass(slot, [DraftTree.chain([1, 2, 3])], [[0]], num_kept=num_kept))
        if num_kept:  # states may be ahead of their text
            self._cut_to(slot, len(self._texts[slot]))

    def _cut(self, slot: int) -> None:
        self._cut_to(slot, self._number(0, len(self._texts[slot]) + 1))

    def _cut_to(self, slot: int, length: int) -> None:
        length = self._cache.cut(slot, length)
        del self._texts[slot][length:]

    def _copy(self, slot: int) -> None:
        other = (slot + self._number(1, _NUM_SLOTS)) % _NUM_SLOTS
        length = self._cache.copy(slot, other, self._number(0, len(self._texts[slot]) + 1))
        self._texts[other] = self._texts[slot][:length]

    def _swap(self, slot: int) -> None:
        other = self._number(0, _NUM_SLOTS)
        self._cache.swap(slot, other)
        self._texts[slot], self._texts[other] = self._texts[other], self._texts[slot]

    def _place(self, slot: int) -> None:
        self._cache.checkpoint(slot)

    def _growth(self, slot: int) -> None:
        self._cache.reserve(_NUM_SLOTS, min(self._cache.capacity + 16, self._target.manifest.max_context))

    def _number(self, least: int, end: int) -> int:
        return int(self._rng.integers(least, end))

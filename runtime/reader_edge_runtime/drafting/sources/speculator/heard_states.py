"""The target's states of a text's tokens, kept until the speculator has read them."""

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import ScoredTree

MOST_HEARD = 1024  # tokens whose states are kept: a speculator that was silent for longer reads the newest


class HeardStates:
    """States of a run of a text's tokens. which: of the states that the target tells, those that are kept.

    start: position of the first token whose states are known. end: behind the last.
    """

    def __init__(self, which: list[int]) -> None:
        self._which = which
        self._parts: list[Float32Array] = []
        self.start = self.end = 0

    def hear(self, scored: ScoredTree, token_ids: list[int]) -> None:
        """Take those of the nodes of a tree that became the text, whose last token no pass has scored yet.

        scored: with states.
        """
        assert scored.layer_states is not None
        tree, path, node = scored.tree, [0], 0
        for token_id in token_ids[scored.root + 1 : -1]:
            node = tree.child(node, token_id)
            if node < 0:
                break
            path.append(node)
        if scored.root != self.end:
            self._parts, self.start = [], scored.root
        states = scored.layer_states[path][:, self._which]
        self._parts.append(states.reshape(len(path), -1))
        self.end = scored.root + len(path)
        while self._parts and self.end - self.start - len(self._parts[0]) >= MOST_HEARD:
            self.start += len(self._parts.pop(0))

    def between(self, start: int, end: int) -> Float32Array:
        """float32 (end - start, F), of tokens that are known."""
        states = np.concatenate(self._parts)
        return states[start - self.start : end - self.start]

    def forget_before(self, position: int) -> None:
        """Let go of states that were read."""
        while self._parts and self.start + len(self._parts[0]) <= position:
            self.start += len(self._parts.pop(0))

"""Drafts that a remote client (a "device") sends for its request, from its connection's thread to the decoder's."""

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from reader_edge_runtime.draft_tree import DraftTree

DEVICE = "device"  # the name of remote clients' drafts, in statistics
MOST_NODES = 256  # of a tree, its root included
AWAY_S = 5.0  # without a tree, after which a request in lock-step gives up its KV slot
_MOST_QUEUED = 8  # trees that may wait for their turn


class RemoteTree(NamedTuple):
    """tree: its root is the last token of a text of so many tokens. check: `TextCheck` of that text, 0 of a hint."""

    position: int
    tree: DraftTree
    check: int = 0


class TextCheck:
    """A CRC-32 of a text's tokens, made as the text grows: by it a tree names the text that it goes on from."""

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        self.value = self.num_tokens = 0
        self.extend(token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        self.value = zlib.crc32(np.array(token_ids, "<u4").tobytes(), self.value)
        self.num_tokens += len(token_ids)

    def extended(self, token_ids: Sequence[int]) -> "TextCheck":
        """That of a longer text."""
        other = TextCheck()
        other.value, other.num_tokens = self.value, self.num_tokens
        other.extend(token_ids)
        return other


class RemoteDrafts:
    """A mailbox of one request. Any thread may leave drafts in it; the decoder's takes them.

    is_lockstep: whether a step of the request waits for a tree of the client, which then is all that is verified.
    Otherwise drafts are hints: mixed with others if they come in time, and never waited for.
    is_held: whether the request waits for its client to come back.
    on_change: called when the request may go on.
    """

    def __init__(self, is_lockstep: bool = False) -> None:
        self.is_lockstep = is_lockstep
        self.is_held = False
        self.on_change: Callable[[], object] = lambda: None
        self._may_draft = True
        self._hint: RemoteTree | None = None
        self._walked: RemoteTree | None = None  # the hint that was looked at last, of whose tree the text has
        self._num_walked = self._node = 0  # reached this node with so many of its tokens
        self._trees: deque[RemoteTree] = deque()
        self._waits_since: float | None = None  # for a tree
        self._lock = threading.Lock()
        self._check = TextCheck()

    def leave(self, drafted: RemoteTree) -> None:
        """Leave a hint, in place of an older one, or a tree to verify, behind others; too many of those are dropped."""
        if not self.is_lockstep:
            self._hint = drafted
            return
        with self._lock:
            if len(self._trees) < _MOST_QUEUED:
                self._trees.append(drafted)
        self.on_change()

    def hold(self) -> None:
        """Have the request wait, from its next step on."""
        self.is_held = True
        with self._lock:
            self._trees.clear()

    def go_on(self) -> None:
        """The client is there again."""
        self.is_held = False
        self.on_change()

    def forbid(self) -> None:
        """Have nothing drafted, since wide passes might change the answer."""
        self._may_draft = False

    def is_ready(self, text: Sequence[int]) -> bool:
        """Whether there is something to step with. Trees that go on from another text are dropped."""
        if not self.is_lockstep:
            return True
        self._check.extend(text[self._check.num_tokens :])
        with self._lock:
            while self._trees and not self._fits(self._trees[0], text):
                self._trees.popleft()
            is_there = bool(self._trees)
        self._waits_since = None if is_there else self._waits_since or time.monotonic()
        return is_there

    def is_away(self, text: Sequence[int]) -> bool:
        """Whether the request gives up its KV slot: no tree of this text is there, and the client is silent or held."""
        return self.is_held or (not self.is_ready(text) and self.is_silent)

    @property
    def is_silent(self) -> bool:
        """Whether the client is held, or its request has waited longer than AWAY_S for a tree."""
        since = self._waits_since
        return self.is_held or (since is not None and time.monotonic() - since > AWAY_S)

    def take_tree(self, max_nodes: int) -> DraftTree:
        """The tree to verify, once it is ready: its most valuable nodes."""
        with self._lock:
            tree = self._trees.popleft().tree
        return tree.pruned(max(max_nodes, 1) if self._may_draft else 1)

    def hint(self, text: Sequence[int], max_nodes: int) -> DraftTree | None:
        """What the newest hint says of the text's continuation; None for nothing, also where the text left its tree."""
        hint = self._hint
        if hint is None or not 0 < hint.position <= len(text):
            return None
        if hint is not self._walked:
            is_of_text = text[hint.position - 1] == hint.tree.token_ids[0]
            self._walked, self._num_walked, self._node = hint, hint.position, 0 if is_of_text else -1
        for token_id in text[self._num_walked :] if self._node >= 0 else ():
            self._node = hint.tree.child(self._node, token_id)
            self._num_walked += 1
            if self._node < 0:
                break
        below = hint.tree.below(self._node, max_nodes) if self._node >= 0 else None
        return below if below is not None and len(below) > 1 else None

    def _fits(self, drafted: RemoteTree, text: Sequence[int]) -> bool:
        is_long = drafted.position == len(text) and drafted.check == self._check.value
        return is_long and drafted.tree.token_ids[0] == text[-1]

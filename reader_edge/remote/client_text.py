"""Drafts that a client makes for the text of one answer, and which of them are sent to the server."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from reader_edge.remote.frames import Drafted
from reader_edge_runtime.decoding.planning.tree_widths import best_widths
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, RequestContext
from reader_edge_runtime.drafting.remote_drafts import MOST_NODES, RemoteDrafts, RemoteTree, TextCheck
from reader_edge_runtime.errors import DraftError

_MAX_DEPTH = 96
_FIRST_NODES = 16  # of a draft that tells whether there is anything to say
_HINT_NODES = 128
_LEAST_VALUE = 0.02  # probability of a node below which it is not sent
_LEAST_GAIN = 0.5  # expected tokens that the server cannot know of, below which nothing is sent
_FRESH_SHARE = 0.75  # of a hint's depth that is left of it before another is sent
_LEAST_NEW = 4  # levels by which another must be deeper
_TREE_NODES = 16  # of a tree to verify, where the server does not say what passes take
_PUBLIC = ("", "context")  # sources of a draft that the server has as well


class ClientText(ABC):
    """Drafts for one answer. token_ids: its list, the prompt first, which grows as tokens come."""

    def __init__(self, drafter: Drafter, token_ids: list[int]) -> None:
        self.token_ids = token_ids
        self._drafter = drafter
        self._request = drafter.begin(RequestContext(token_ids))

    @abstractmethod
    def frames(self) -> list[Drafted]:
        """What to send now that the text is what it is."""

    @abstractmethod
    def lost(self) -> None:
        """Nothing that was sent is on its way any more."""

    def finish(self) -> None:
        """The answer is over: it is one of the past answers from now on."""
        self._request.finish()

    def _draft(self, max_nodes: int) -> DraftTree:
        (draft,) = self._drafter.draft([DraftRequest(self._request, max_nodes, _MAX_DEPTH)])
        if isinstance(draft, DraftTree):
            return draft
        raise draft if isinstance(draft, DraftError) else DraftError(str(draft))


class HintedText(ClientText):
    """Hints at how the text goes on, where something here says more of that than the text itself."""

    def __init__(self, drafter: Drafter, token_ids: list[int]) -> None:
        super().__init__(drafter, token_ids)
        self._sent = RemoteDrafts()  # as the server has it
        self._depth_sent = 0

    def frames(self) -> list[Drafted]:
        left = self._sent.hint(self.token_ids, MOST_NODES)
        depth_left = 0 if left is None else _depth(left)
        if depth_left and depth_left >= _FRESH_SHARE * self._depth_sent:
            return []
        if _private_gain(self._draft(_FIRST_NODES)) < _LEAST_GAIN:
            return []
        draft = self._draft(_HINT_NODES)
        draft = draft.pruned(sum(value >= _LEAST_VALUE for value in draft.values))
        if _depth(draft) < depth_left + _LEAST_NEW and depth_left:
            return []
        hint = RemoteTree(len(self.token_ids), draft)
        self._sent.leave(hint)
        self._depth_sent = _depth(draft)
        return [Drafted.of(hint, is_hint=True)]

    def lost(self) -> None:
        self._sent, self._depth_sent = RemoteDrafts(), 0


class _Sent(NamedTuple):
    """A tree that was sent. path: tokens behind its root if all of its likeliest path comes, and one more; empty where
    that one more is not guessed."""

    position: int
    check: int
    path: list[int]


class VerifiedText(ClientText):
    """Trees that the server verifies in lock-step, and some that go on from what they may lead to.

    pass_s: seconds of the server's passes over 1, 2, ... nodes; round_trip_s: of a frame there and back; by both is
    chosen how wide trees are. num_ahead: trees below guesses that have not come true yet.
    """

    def __init__(
        self, drafter: Drafter, token_ids: list[int], pass_s: Sequence[float], round_trip_s: float, num_ahead: int
    ) -> None:
        super().__init__(drafter, token_ids)
        self._times = [float("inf"), *pass_s]
        self._beside_s = round_trip_s / (1 + num_ahead)
        self._num_ahead = num_ahead
        self._num_prompt_tokens = len(token_ids)
        self._sent: deque[_Sent] = deque()

    def frames(self) -> list[Drafted]:
        if len(self.token_ids) == self._num_prompt_tokens:  # the first token takes no tree
            return []
        check = TextCheck(self.token_ids)
        while self._sent and (self._sent[0].position, self._sent[0].check) != (check.num_tokens, check.value):
            self._sent.popleft()
        if len(self._sent) > self._num_ahead:
            return []
        draft, node, frames = self._draft(MOST_NODES if self._num_ahead else MOST_NODES // 4), 0, []
        for sent in self._sent:
            node = _walked(draft, node, sent.path)
            check = check.extended(sent.path)
        while node >= 0 and len(self._sent) <= self._num_ahead:
            whole = draft.below(node, MOST_NODES)
            tree = whole.pruned(self._width(whole))
            frames.append(Drafted.of(RemoteTree(check.num_tokens, tree, check.value), is_hint=False))
            path = _guessed(whole, tree)
            self._sent.append(_Sent(check.num_tokens, check.value, path))
            node = _walked(draft, node, path)
            check = check.extended(path)
        return frames

    def lost(self) -> None:
        self._sent.clear()

    def _width(self, tree: DraftTree) -> int:
        """Nodes of a tree that bring the most tokens a second, the way there and back included."""
        if len(self._times) < 3:
            return _TREE_NODES
        gains = sorted(tree.values[1:], reverse=True)
        return best_widths([gains], self._times[: 2 + len(gains)], 1.0, self._beside_s, [0.0])[0]


def _private_gain(tree: DraftTree) -> float:
    """Tokens that are expected of nodes which the text alone does not name."""
    return sum(value for value, name in zip(tree.values, tree.sources, strict=True) if name not in _PUBLIC)


def _depth(tree: DraftTree) -> int:
    """Levels below the root."""
    depths = [0]
    for parent in tree.parents[1:]:
        depths.append(depths[parent] + 1)
    return max(depths)


def _walked(tree: DraftTree, node: int, path: Sequence[int]) -> int:
    """The node behind a path; -1 where there is none, or no path."""
    for token_id in path:
        node = tree.child(node, token_id)
        if node < 0:
            return -1
    return node if path else -1


def _guessed(whole: DraftTree, tree: DraftTree) -> list[int]:
    """The likeliest path through a tree, and the token behind it that the whole draft has; empty where it has none."""
    node, path = 0, []
    while True:
        children = [other for other in range(node + 1, len(whole)) if whole.parents[other] == node]
        if not children:
            return []
        node = max(children, key=whole.values.__getitem__)
        path.append(whole.token_ids[node])
        if _walked(tree, 0, path) < 0:
            return path

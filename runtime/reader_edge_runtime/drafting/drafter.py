"""Drafters: what proposes a tree before each forward pass and learns from what was accepted."""

from collections.abc import Sequence
from heapq import nlargest
from operator import attrgetter
from typing import Protocol

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.calibration import Calibration
from reader_edge_runtime.drafting.counts import ORDER, Counts, History
from reader_edge_runtime.drafting.tree_builder import Candidate, build_tree

_MAX_CHILDREN = 8
_MIN_UNCLAIMED = 0.02
_PROMPT_TAIL = 4


class RequestDrafter(Protocol):
    """The drafting state of one request."""

    def draft(self, max_nodes: int, max_depth: int) -> DraftTree:
        """A tree of at most max_nodes nodes and max_depth levels below its root, the request's last token."""

    def observe(self, tree: DraftTree, token_ids: Sequence[int]) -> None:
        """Learn that `token_ids` followed the root of `tree`."""

    def finish(self) -> None:
        """The request ended; what it taught may serve later ones."""


class Drafter(Protocol):
    """What an engine drafts with."""

    def begin(self, prompt_token_ids: Sequence[int]) -> RequestDrafter:
        """Start a request whose first answer token is not known yet."""

    def forget(self) -> None:
        """Drop everything learned from past requests."""


class RetrievalDrafter:
    """Drafts from counts over the request itself (context) and over past requests (history)."""

    def __init__(self, config: DraftConfig) -> None:
        self.config = config
        self.forget()

    def begin(self, prompt_token_ids: Sequence[int]) -> "RetrievalRequest":
        return RetrievalRequest(self, prompt_token_ids)

    def forget(self) -> None:
        self.history = History(self.config.max_history_tokens if self.config.is_history_used else 0)
        self.calibration = Calibration()


class RetrievalRequest:
    """One request of a RetrievalDrafter."""

    def __init__(self, drafter: RetrievalDrafter, prompt_token_ids: Sequence[int]) -> None:
        self._config = drafter.config
        self._calibration = drafter.calibration
        self._history = drafter.history
        self._token_ids = list(prompt_token_ids)
        self._num_prompt_tokens = len(self._token_ids)
        self._context = Counts()
        self._context.extend(self._token_ids)
        self._sources = (("context", self._context), ("history", self._history.counts))

    def draft(self, max_nodes: int, max_depth: int) -> DraftTree:
        recent = tuple(self._token_ids[-ORDER:])
        return build_tree(
            self._token_ids[-1],
            lambda path: self._candidates((recent + path)[-ORDER:]),
            min(max_nodes, self._config.max_nodes),
            min(max_depth, self._config.max_depth),
        )

    def observe(self, tree: DraftTree, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            self._calibrate(tuple(self._token_ids[-ORDER:]), token_id)
            self._context.extend([token_id])
            self._token_ids.append(token_id)

    def finish(self) -> None:
        self._history.add(self._token_ids[max(0, self._num_prompt_tokens - _PROMPT_TAIL) :])

    def _candidates(self, suffix: tuple[int, ...]) -> list[Candidate]:
        """Blend all match lengths of all sources, longest first; what one class does not claim falls to the next."""
        blended: dict[int, Candidate] = {}
        shares: dict[int, float] = {}
        unclaimed = 1.0
        for start in range(len(suffix)):
            for index, (source, counts) in enumerate(self._sources):
                row = counts.row(suffix[start:])
                if row is None:
                    continue
                total = sum(row.values())
                confidence = self._calibration.confidence(index, len(suffix) - start, total)
                for token_id, count in row.items():
                    share = unclaimed * confidence * count / total
                    known = blended.get(token_id)
                    if known is None:
                        shares[token_id] = share
                        blended[token_id] = Candidate(token_id, share, source)
                    elif share > shares[token_id]:
                        shares[token_id] = share
                        blended[token_id] = Candidate(token_id, known.probability + share, source)
                    else:
                        blended[token_id] = Candidate(token_id, known.probability + share, known.source)
                unclaimed *= 1.0 - confidence
            if unclaimed < _MIN_UNCLAIMED:
                break
        return nlargest(_MAX_CHILDREN, blended.values(), key=attrgetter("probability"))

    def _calibrate(self, suffix: tuple[int, ...], token_id: int) -> None:
        for start in range(len(suffix)):
            for index, (_, counts) in enumerate(self._sources):
                row = counts.row(suffix[start:])
                if row is not None:
                    support = sum(row.values())
                    self._calibration.observe(index, len(suffix) - start, support, token_id in row)

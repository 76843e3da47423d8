"""Drafts of text that stands in the files of a workspace: a copy that is followed, and found again behind an edit."""

import threading
import weakref
from collections.abc import Sequence
from typing import cast

import numpy as np

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.drafting.sources.workspace.index import KEY, LONGEST, TextIndex

NAME = "workspace"
_MAX_LOST = 128  # tokens after which a copy that ended is given up
_MIN_RESUMED = 8  # tokens of a copy that is worth coming back to
_MIN_NEAR = 2  # tokens that have to match there
# How sure a token is: after a copy of so many tokens; where one that ended may go on, by the tokens that match there.
_SURE = tuple(1 - 0.5 / (1 + length / 2) for length in range(LONGEST + 1))
_RESUMED = (0.15, 0.3, 0.5, 0.6, 0.7)


class WorkspaceSource(DraftSource):
    """Drafts from an index of texts.

    index: of those that are there now; another takes its place when they change. was_read: set unless all of them are
    still to be read.
    """

    name = NAME

    def __init__(self) -> None:
        self.index = TextIndex()
        self.was_read = threading.Event()
        self.was_read.set()
        self._requests: weakref.WeakSet[RequestDrafter] = weakref.WeakSet()

    @property
    def is_used(self) -> bool:
        """Whether a request is being answered."""
        return len(self._requests) > 0

    def wait(self) -> None:
        self.was_read.wait()

    def begin(self, context: RequestContext) -> "WorkspaceRequest":
        request = WorkspaceRequest(self, context)
        self._requests.add(request)
        return request

    def end(self, request: RequestDrafter) -> None:
        self._requests.discard(request)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | None]:
        return [
            cast(WorkspaceRequest, each.request).proposal(min(each.max_depth, each.max_nodes - 1))
            for each in draft_requests
        ]


class WorkspaceRequest(RequestDrafter):
    """A request, and where its text is a copy: _place is that of the token after it, -1 where there is none."""

    def __init__(self, source: WorkspaceSource, context: RequestContext) -> None:
        super().__init__(context)
        self._source, self._index = source, source.index
        self._num_seen = self.num_prompt_tokens
        self._place, self._length = -1, 0
        self._ended, self._num_lost = -1, 0  # where the last copy ended, and how many tokens ago

    def proposal(self, max_depth: int) -> DraftTree | None:
        """What comes next in the copy; where it has just ended or there is none, how one may go on."""
        if self._index is not self._source.index:
            self._index, self._place, self._ended = self._source.index, -1, -1
        self._follow()
        if self._place < 0:
            recent = np.array(self.token_ids[-LONGEST:], np.int32)
            self._place, self._length = self._index.find(recent)
            if self._place < 0 and self._ended >= 0:
                place, length = self._index.find_near(self._ended, recent)
                if length < _MIN_NEAR:
                    return self._chain(place if length else self._ended + 1, _RESUMED[length], max_depth)
                self._place, self._length = place, length
        if self._place < 0:
            return None
        share = _SURE[min(self._length, LONGEST)] if self._length >= KEY else _RESUMED[self._length]
        return self._chain(self._place, share, max_depth)

    def finish(self) -> None:
        self._source.end(self)

    def _follow(self) -> None:
        """Take in the text's new tokens."""
        tokens = self._index.tokens
        for token_id in self.token_ids[self._num_seen :]:
            if self._place >= 0 and tokens[self._place] == token_id:
                self._place, self._length = self._place + 1, self._length + 1
            elif self._place >= 0:
                if self._length >= _MIN_RESUMED:
                    self._ended, self._num_lost = self._place, 0
                self._place = -1
            self._num_lost += 1
        if self._num_lost > _MAX_LOST:
            self._ended = -1
        self._num_seen = len(self.token_ids)

    def _chain(self, place: int, share: float, max_depth: int) -> DraftTree | None:
        """The text from a place on, each token as sure as `share` tells; None at its end."""
        text = self._index.tokens[place : place + max_depth].tolist()
        num = text.index(-1) if -1 in text else len(text)
        chain = [self.token_ids[-1], *text[:num]]
        values = [share**depth for depth in range(num + 1)]
        return DraftTree(chain, list(range(-1, num)), [NAME] * (num + 1), values) if num else None

"""Drafters: what proposes a tree before each forward pass and learns from what was accepted."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.history_file import HistoryFile
from reader_edge_runtime.drafting.sources.source import Source
from reader_edge_runtime.errors import HistoryError

if TYPE_CHECKING:
    from reader_edge_runtime.drafting.core import DraftingCore, RequestCore


_PROMPT_TAIL = 4
# Past answers that wait to be learned with the next draft.
_MAX_UNLEARNED = 64
# Tokens before a tree's root that `learn_successors` is told.
NUM_BEFORE = 2

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]


_Successors = tuple[DraftTree, range, list[int], Int64Array, Float32Array]


class RequestDrafter(Protocol):
    """The drafting state of one request.

    num_harvested_rows: of how many of the prompt's last tokens the target's successors are wanted.
    """

    num_harvested_rows: int

    def draft(self, max_nodes: int, max_depth: int) -> DraftTree:
        """A tree of at most max_nodes nodes and max_depth levels below its root, the request's last token."""

    def observe(self, tree: DraftTree, token_ids: Sequence[int]) -> None:
        """Learn that `token_ids` followed the root of `tree`, which may be a part of what was drafted, or plain."""

    def learn_successors(
        self, tree: DraftTree, rows: range, before_ids: list[int], top_ids: Int64Array, top_logits: Float32Array
    ) -> None:
        """Learn the target's best successors (R, K), best first, of the tree's nodes `rows`; rejected ones count too.

        before_ids: the text's last tokens before the root, oldest first, NUM_BEFORE at most. Called when `observe` has
        been told what the tree led to: what is foretold with this knowledge must not be learned from it.
        """

    def finish(self) -> None:
        """The request ended; what it taught may serve later ones."""


class Drafter(Protocol):
    """What an engine drafts with."""

    @property
    def is_ready(self) -> bool:
        """Whether it can draft by now; until then nobody waits for it."""

    def begin(self, prompt_token_ids: Sequence[int]) -> RequestDrafter:
        """Start a request whose first answer token is not known yet."""

    def forget(self) -> None:
        """Drop everything learned from past requests."""


class RetrievalDrafter:
    """Drafts from the request's own text (context), past answers (history) and further sources.

    The compiled core may take a while to load, or long to compile on a machine that never ran it. Until it is there,
    nothing is drafted; requests that run by then catch up.
    """

    def __init__(
        self,
        config: DraftConfig,
        sources: Sequence[Source] = (),
        datastores: Sequence[Datastore] = (),
        history_file: HistoryFile | None = None,
    ) -> None:
        self.config = config
        self._sources = tuple(sources)
        self._datastores = tuple(datastores)
        self._history_file = history_file
        self._past_answers = history_file.read() if history_file is not None else []
        self._core: DraftingCore | None = None
        self._loader = KernelLoader.shared()
        self._loader.start()

    def wait(self) -> "RetrievalDrafter":
        """Itself, once the core is there: for tools that measure or prove."""
        self._loader.wait()
        self.core()
        return self

    @property
    def is_ready(self) -> bool:
        return self._loader.is_ready

    def begin(self, prompt_token_ids: Sequence[int]) -> "RetrievalRequest":
        return RetrievalRequest(self, prompt_token_ids)

    def forget(self) -> None:
        """Also what came from a history file, which itself stays as it is."""
        self._past_answers = []
        if self._core is not None:
            self._core = self._new_core()

    def learn_later(self, token_ids: Sequence[int]) -> None:
        """Take an answer into the history when something is next drafted."""
        if self.config.is_history_used:
            self._past_answers.append(np.array(token_ids, np.int32))
            if len(self._past_answers) > _MAX_UNLEARNED:
                self.core()

    def remember(self, token_ids: Sequence[int] | Int32Array) -> None:
        """Keep an answer, or that it was used, in the history file; one that cannot be written ends with a warning."""
        if self._history_file is None:
            return
        try:
            self._history_file.append(np.array(token_ids, np.int32))
        except HistoryError as error:
            warnings.warn(f"{error} Answers are no longer added to it.", stacklevel=2)
            self._history_file = None

    def core(self) -> "DraftingCore | None":
        """The compiled core, with all past answers learned; None while it is not loaded."""
        if not self._loader.is_ready:
            return None
        if self._core is None:
            self._core = self._new_core()
        for answer in self._past_answers:
            self._core.history.add(answer)
        self._past_answers.clear()
        return self._core

    def _new_core(self) -> "DraftingCore":
        from reader_edge_runtime.drafting.core import DraftingCore

        return DraftingCore(self.config, sources=self._sources, datastores=self._datastores)


class RetrievalRequest:
    """One request of a RetrievalDrafter. What it is told costs nothing until it drafts: then it is learned."""

    def __init__(self, drafter: RetrievalDrafter, prompt_token_ids: Sequence[int]) -> None:
        config = drafter.config
        self.num_harvested_rows = config.max_harvested_tokens if config.is_logits_used else 0
        self._drafter = drafter
        self._token_ids = list(prompt_token_ids)
        self._num_prompt_tokens = len(self._token_ids)
        self._num_observed = 0
        self._successors: list[_Successors] = []
        self._request: RequestCore | None = None
        self._core: DraftingCore | None = None

    def draft(self, max_nodes: int, max_depth: int) -> DraftTree:
        request = self._current()
        if request is None or max_nodes < 2 or max_depth < 1:
            return DraftTree.chain([self._token_ids[-1]])
        return request.draft(max_nodes, max_depth)

    def observe(self, tree: DraftTree, token_ids: Sequence[int]) -> None:
        self._token_ids.extend(token_ids)

    def learn_successors(
        self, tree: DraftTree, rows: range, before_ids: list[int], top_ids: Int64Array, top_logits: Float32Array
    ) -> None:
        if self.num_harvested_rows:
            self._successors.append((tree, rows, before_ids, top_ids.copy(), top_logits.copy()))

    def finish(self) -> None:
        answer = self._token_ids[max(0, self._num_prompt_tokens - _PROMPT_TAIL) :]
        has_answer = len(self._token_ids) > self._num_prompt_tokens
        request = self._current() if self._request is not None else None
        if request is not None:
            for text in request.finish():
                self._drafter.remember(text)
        elif has_answer:
            self._drafter.learn_later(answer)
        if has_answer:
            self._drafter.remember(answer)

    def _current(self) -> "RequestCore | None":
        """The compiled request, caught up with the text; made anew when the drafter was told to forget."""
        core = self._drafter.core()
        if core is not None:
            if core is not self._core:
                self._core = core
                self._request = core.begin(self._token_ids[: self._num_prompt_tokens])
                self._num_observed = self._num_prompt_tokens
            if self._request is not None and len(self._token_ids) > self._num_observed:
                self._request.observe(self._token_ids[self._num_observed :])
                self._num_observed = len(self._token_ids)
            for each in self._successors:  # after the tokens they foretold
                core.successors.learn(*each)
            self._successors.clear()
        return self._request

"""The drafter that needs no training: the request's own text, past answers, datastores and further sources."""

import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import numpy as np

from reader_edge_runtime.arrays import Array, Int32Array
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import (
    PROMPT_TAIL,
    Drafter,
    DraftRequest,
    RequestContext,
    RequestDrafter,
    shared_salt,
)
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.history_file import HistoryFile
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.drafting.sources.source_set import SourceSet
from reader_edge_runtime.drafting.sources.successor_store import SuccessorTable
from reader_edge_runtime.drafting.sources.tool_source import ToolSource
from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers
from reader_edge_runtime.drafting.speculators.speculator_request import MOST_UNREAD
from reader_edge_runtime.errors import DraftError, HistoryError, ReaderEdgeError

if TYPE_CHECKING:
    from reader_edge_runtime.drafting.core import DraftingCore, RequestCore

# Past answers that wait to be learned with the next draft.
_MAX_UNLEARNED = 64
# Salts whose cores outlive their requests.
_MAX_KEPT = 8
# Of so many drafts for which a source was called that learns its gain, one is made without it, too.
_COMPARED = 2


class RetrievalDrafter(Drafter):
    """Drafts from the request's own text (context), past answers (history) and further sources.

    table: the target's likely successors of single tokens, where its package has them. warmup_answers: what the target
    wrote before any request, as a history that all others come behind. disabled_sources: names of sources that are not
    used, since they cannot pay off on this machine.

    What is learned of requests serves those with the same salt. A history file is shared by all callers, and has
    nothing of requests with an adapter.

    Until the compiled core is loaded, or compiled on a machine that never ran it, nothing is drafted; requests that
    began before catch up. Raises ConfigError for more sources than can be mixed, HistoryError.
    """

    def __init__(
        self,
        config: DraftConfig,
        sources: Sequence[DraftSource] = (),
        datastores: Sequence[Datastore] = (),
        history_file: HistoryFile | None = None,
        table: SuccessorTable | None = None,
        warmup_answers: WarmupAnswers | None = None,
        disabled_sources: Sequence[str] = (),
    ) -> None:
        self.config = config
        self.disabled_sources = tuple(disabled_sources)
        self.sources = SourceSet([ToolSource(config.is_history_used), *sources])
        self.num_harvested_rows = config.max_harvested_tokens if config.is_logits_used else 0
        self.wants_hidden_states = self.sources.wants_hidden_states
        self.wants_layer_states = self.sources.wants_layer_states
        self.num_harvested_states = MOST_UNREAD
        self._datastores = tuple(datastores)
        self._history_file = history_file
        self.keeps_answers = history_file is not None
        self._table = table
        self._own_texts = {text.tobytes(): text for text in warmup_answers.texts} if warmup_answers is not None else {}
        self._is_shared = history_file is not None
        self._past_answers = [("", text) for text in history_file.read()] if history_file is not None else []
        self._recalled: Callable[[str], DraftingCore | None] = lambda salt: None
        self._forget_cores()
        self._is_changing = False
        self._loader = KernelLoader.shared()

    def wait(self) -> "RetrievalDrafter":
        """Itself, once the core and the sources are there: for tools that measure or prove."""
        self.loaded_core()
        self.sources.wait()
        return self

    @property
    def is_ready(self) -> bool:  # type: ignore[override]  # it becomes so
        return self._loader.is_ready

    def begin(self, context: RequestContext) -> "RetrievalRequest":
        return RetrievalRequest(self, context)

    def draft(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | ReaderEdgeError]:
        self.proposal_s = 0.0
        cores = [core for each in draft_requests if (core := self.core(each.request.salt)) is not None]
        if len(cores) < len(draft_requests):
            return [DraftTree.root(draft_request.request.token_ids[-1]) for draft_request in draft_requests]
        with self.changing():
            return self._drafts(cores, draft_requests)

    def _drafts(
        self, cores: Sequence["DraftingCore"], draft_requests: Sequence[DraftRequest]
    ) -> list[DraftTree | ReaderEdgeError]:
        requests = [cast(RetrievalRequest, draft_request.request) for draft_request in draft_requests]
        states = [request.caught_up(core) for request, core in zip(requests, cores, strict=True)]
        drafts: list[DraftTree | ReaderEdgeError] = []
        proposals = self.sources.propose(
            [request.sources for request in requests],
            draft_requests,
            lambda b, proposed: states[b].top_probability(proposed),
            lambda b, proposed: states[b].draft(draft_requests[b].max_nodes, draft_requests[b].max_depth, proposed),
        )
        for request, state, draft_request, proposed in zip(requests, states, draft_requests, proposals, strict=True):
            if isinstance(proposed, DraftError):
                drafts.append(proposed)
                continue
            began = time.perf_counter()
            request.compare(draft_request, proposed)
            self.proposal_s += request.sources.proposal_s + time.perf_counter() - began
            request.costly_names = request.sources.costly_names
            drafts.append(state.draft(draft_request.max_nodes, draft_request.max_depth, proposed))
        return drafts

    def forget(self) -> None:
        """Also what came from a history file, which itself stays as it is; the model's own answers are kept."""
        self.sources.restore({})
        self._recalled = lambda salt: None
        self._forget_cores()
        self._past_answers, self._is_changing = [], False
        self.core()  # now, so that the next request need not wait for the counting

    def learned(self, salt: str) -> Mapping[str, Array]:
        core = self._cores.get(salt)
        return {} if core is None or self._is_changing else core.state()

    def recall_from(self, learned: Callable[[str], Mapping[str, Array]], vocab_size: int) -> None:
        if self._history_file is None:  # which has the answers already
            self._recalled = lambda salt: self._restored(learned(salt), vocab_size)

    def state(self) -> dict[str, Array]:
        return {**self.loaded_core().state(), **self.sources.state()}

    def restore(self, arrays: Mapping[str, Array], vocab_size: int) -> None:
        self._loader.wait()
        core = self._new_core()
        core.restore(arrays, vocab_size)
        self.sources.restore(arrays)
        self._recalled = lambda salt: None
        self._forget_cores()
        self._keep("", core)
        self._past_answers, self._is_changing = [], False

    def learn_later(self, token_ids: Sequence[int], salt: str = "") -> None:
        """Take an answer into the history when something is next drafted."""
        if self.config.is_history_used:
            self._past_answers.append((self._own_salt(salt), np.array(token_ids, np.int32)))
            if len(self._past_answers) > _MAX_UNLEARNED:
                self.core()

    def remember(self, token_ids: Sequence[int] | Int32Array) -> None:
        """Keep an answer, or that it was used, in the history file; one that cannot be written ends with a warning."""
        text = np.array(token_ids, np.int32)
        if self._history_file is None or text.tobytes() in self._own_texts:
            return
        try:
            self._history_file.append(text)
        except HistoryError as error:
            warnings.warn(f"{error} Answers are no longer added to it.", stacklevel=2)
            self._history_file = None

    def core(self, salt: str = "") -> "DraftingCore | None":
        """The compiled core of a salt's requests, with all past answers learned; None while none is loaded."""
        if not self._loader.is_ready:
            return None
        salt = self._own_salt(salt)
        if self._is_changing:
            self._drop_cores()
        if salt not in self._cores or self._past_answers:
            with self.changing():
                for each, answer in self._past_answers:
                    self._core_of(each).history.add(answer)
                self._core_of(salt)
                self._past_answers = []
        return self._core_of(salt)

    def _own_salt(self, salt: str) -> str:
        return shared_salt(salt) if self._is_shared else salt

    def _core_of(self, salt: str) -> "DraftingCore":
        core = self._cores.get(salt)
        if core is None:
            core = self._recalled(salt) or self._counted(self._own_texts.values())
        self._keep(salt, core)
        return core

    def _keep(self, salt: str, core: "DraftingCore") -> None:
        """Keep a core although no request has it; those without use for longest go first, that without a salt never."""
        self._cores[salt] = core
        self._kept.pop(salt, None)
        self._kept[salt] = core
        if len(self._kept) > _MAX_KEPT:
            del self._kept[next(each for each in self._kept if each)]

    def _forget_cores(self) -> None:
        self._kept: dict[str, DraftingCore] = {}
        self._cores: weakref.WeakValueDictionary[str, DraftingCore] = weakref.WeakValueDictionary()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """While compiled code changes the core. After an interrupt there nothing in it can be trusted, no array's
        size either: the core is made again when it is next needed."""
        self._is_changing = True
        yield
        self._is_changing = False

    def _drop_cores(self) -> None:
        """What was learned is lost, but for past answers in a file."""
        known = [] if self._history_file is None else self._history_file.read()
        self._forget_cores()
        self._past_answers = [*(("", text) for text in known), *self._past_answers]
        self._is_changing = False

    def _restored(self, arrays: Mapping[str, Array], vocab_size: int) -> "DraftingCore | None":
        """A core of what was learned before; None where that is nothing, or not sound."""
        if not arrays:
            return None
        core = self._new_core()
        try:
            core.restore(arrays, vocab_size)
        except DraftError:
            return None
        return core

    def _counted(self, texts: Iterable[Int32Array]) -> "DraftingCore":
        core = self._new_core()
        for text in texts:
            core.history.add(text)
        return core

    def loaded_core(self) -> "DraftingCore":
        """The compiled core, waited for. Raises what kept the kernels from being loaded."""
        self._loader.wait()
        core = self.core()
        assert core is not None
        return core

    def _new_core(self) -> "DraftingCore":
        from reader_edge_runtime.drafting.core import DraftingCore

        return DraftingCore(
            self.config, source_names=self.sources.names, datastores=self._datastores, table=self._table
        )


class RetrievalRequest(RequestDrafter):
    """One request of a RetrievalDrafter, which learns what it is given when it next drafts.

    sources: what the further ones hold of it. draft_without: what the last draft would have been without a source that
    learns its gain; None where that was not found out.
    """

    def __init__(self, drafter: RetrievalDrafter, context: RequestContext) -> None:
        super().__init__(context)
        self.sources = drafter.sources.begin(context)
        self._drafter = drafter
        self._hint_texts = context.hints.texts
        self._num_learned = 0
        self._scored: list[ScoredTree] = []
        self._state: RequestCore | None = None
        self._num_compared = 0
        self.draft_without: DraftTree | None = None

    def observe(self, scored: ScoredTree | None) -> None:
        if scored is not None:
            self._scored.append(scored)
            del self._scored[:-MOST_UNREAD]  # while nothing is drafted
            if self.draft_without is not None:
                came = self.token_ids[scored.root + 1 :]
                without = self.draft_without.pruned(len(scored.tree))
                self._drafter.sources.learn_gain(self.sources, _accepted(scored.tree, came) - _accepted(without, came))
        self.draft_without = None

    def compare(self, draft_request: DraftRequest, proposed: Sequence[DraftTree | None]) -> None:
        """Where a source was called that learns its gain, draft without it now and then, to know what it brings."""
        self.draft_without = None
        if self._drafter.sources.wanting_gain(self.sources) is None:
            return
        self._num_compared += 1
        if self._num_compared % _COMPARED == 1:
            assert self._state is not None
            others = [None if i in self.sources.costly else each for i, each in enumerate(proposed)]
            self.draft_without = self._state.draft(draft_request.max_nodes, draft_request.max_depth, others)

    def caught_up(self, core: "DraftingCore") -> "RequestCore":
        """The compiled state, with all of the text learned; made again if `core` has changed."""
        if self._state is None or self._state.core is not core:
            self._state = core.begin(self.token_ids[: self.num_prompt_tokens], self._hint_texts)
            self._num_learned = self.num_prompt_tokens
        if len(self.token_ids) > self._num_learned:
            self._state.observe(self.token_ids[self._num_learned :])
            self._num_learned = len(self.token_ids)
        for scored in self._scored:  # after the tokens they predicted
            core.successors.learn(scored, self.token_ids)
        self.sources.observe(self._scored)
        self._scored.clear()
        return self._state

    def finish(self) -> None:
        core = None if self._state is None else self._drafter.core(self.salt)  # learns past answers, for drafts alone
        has_answer, is_kept = len(self.token_ids) > self.num_prompt_tokens, not shared_salt(self.salt)
        answer = self.token_ids[max(0, self.num_prompt_tokens - PROMPT_TAIL) :]
        if core is not None:
            with self._drafter.changing():
                used = self.caught_up(core).finish()
            for text in used if is_kept else ():
                self._drafter.remember(text)
        elif has_answer:
            self._drafter.learn_later(answer, self.salt)
        if has_answer and is_kept:
            self._drafter.remember(answer)
        self.sources.finish()


def _accepted(tree: DraftTree, came: Sequence[int]) -> int:
    """How many of the tokens that came a tree had drafted."""
    node = 0
    for number, token_id in enumerate(came):
        node = tree.child(node, token_id)
        if node < 0:
            return number
    return len(came)

"""Drafting by compiled kernels: what all requests share, and the drafting state of each."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.arrays import Float32Array, Int32Array
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import PROMPT_TAIL
from reader_edge_runtime.drafting.kernels import datastore, layout, learning, mixture, tree
from reader_edge_runtime.drafting.kernels.arrays import Float32Table, Int32Table
from reader_edge_runtime.drafting.kernels.counts import ORDER
from reader_edge_runtime.drafting.kernels.evidence import EvidenceSources
from reader_edge_runtime.drafting.kernels.kernel import packed
from reader_edge_runtime.drafting.kernels.mixture import SCRATCH
from reader_edge_runtime.drafting.kernels.tree import Arrays
from reader_edge_runtime.drafting.parameters import shipped_parameters
from reader_edge_runtime.drafting.proposals import NO_PROPOSALS, pack_proposals
from reader_edge_runtime.drafting.sources.count_store import CountStore, History
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.datastore_set import DatastoreSet
from reader_edge_runtime.drafting.sources.successor_store import SuccessorStore, SuccessorTable
from reader_edge_runtime.errors import DraftError

_MAX_NODES = 256
# An answer that repeated so many tokens of a past text made use of it.
_USED_LENGTH = ORDER


class DraftingCore:
    """History, learned parameters and working memory, shared by all requests of an engine; one caller at a time.

    parameters: of the mixture, learned in place. source_names: of further sources than those compiled in.
    table: the target's likely successors, known to begin with.
    """

    def __init__(
        self,
        config: DraftConfig,
        parameters: Float32Array | None = None,
        source_names: Sequence[str] = (),
        datastores: Sequence[Datastore] = (),
        table: SuccessorTable | None = None,
    ) -> None:
        self.config = config
        self.names = (*layout.SOURCES, *source_names)
        self.history = History(config.max_history_tokens if config.is_history_used else 0)
        self.successors = SuccessorStore(config.max_recorded_pairs if config.is_logits_used else 0, table)
        self.datastores = DatastoreSet(datastores)
        self.parameters = shipped_parameters() if parameters is None else parameters.copy()
        self.work: Int32Array = np.zeros(layout.WORK, np.int32)
        self.scratch: Float32Array = np.zeros(SCRATCH, np.float32)

    def begin(self, prompt_token_ids: Sequence[int], hint_texts: Sequence[Sequence[int]] = ()) -> "RequestCore":
        """A request. hint_texts: texts as if they came before the prompt."""
        return RequestCore(self, prompt_token_ids, hint_texts)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All that was learned from past requests, as named arrays."""
        texts = self.history.texts()
        return {
            "history": np.concatenate([np.empty(0, np.int32), *texts]),
            "history_lengths": np.array([len(text) for text in texts], np.int32),
            **self.successors.arrays._asdict(),
            "parameters": self.parameters,
        }

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], vocab_size: int) -> None:
        """Take up what `state` gave, in place of nothing. Raises DraftError for what it could not have given.

        The history is counted again: texts that were forgotten leave no trace.
        """
        for name, own in self.state().items():
            given = arrays.get(name)
            if given is None or given.dtype != own.dtype or (given.ndim, given.shape[1:]) != (own.ndim, own.shape[1:]):
                raise DraftError("What was learned is of another version: start over.")
        history, lengths, parameters = (arrays[name] for name in ("history", "history_lengths", "parameters"))
        is_text = bool(np.all((history >= 0) & (history < vocab_size)) and np.all(lengths > 0))
        if not is_text or lengths.sum(dtype=np.int64) != len(history) or not _are_sound(parameters):
            raise DraftError("What was learned is not sound: start over.")
        self.successors.restore(arrays["after_token"], arrays["after_pair"], vocab_size)
        self.parameters[:] = parameters
        for text in np.split(history, np.cumsum(lengths)[:-1]):
            self.history.add(text)


def _are_sound(parameters: Float32Array) -> bool:
    """Whether these can be a mixture's: compiled drafting makes indices of them."""
    return bool(
        parameters.shape == (mixture.PARAMETERS,)
        and np.isfinite(parameters).all()
        and (parameters[mixture.VALUE_TRIALS : mixture.TOKEN_BIASES] > 0).all()
    )


class RequestCore:
    """One request: the counts of its context, and its state in all sources."""

    def __init__(
        self, core: DraftingCore, prompt_token_ids: Sequence[int], hint_texts: Sequence[Sequence[int]] = ()
    ) -> None:
        self.core = core
        self._context = CountStore(len(prompt_token_ids) + sum(map(len, hint_texts)))
        self._state: Int32Array = np.full(layout.STATE, -1, np.int32)
        self._epoch = core.history.epoch
        self._proposals = NO_PROPOSALS
        self._sources: EvidenceSources | None = None
        self._nodes: Int32Table = np.zeros((tree.NODE_FIELDS, _MAX_NODES), np.int32)
        self._values: Float32Table = np.zeros((tree.VALUE_FIELDS, _MAX_NODES), np.float32)
        self._states: Int32Table = np.zeros((_MAX_NODES, layout.STATE), np.int32)
        self._evidences: Int32Table = np.zeros((_MAX_NODES, layout.EVIDENCE), np.int32)
        self._num_nodes = 0
        self._answer_begin = 1
        for text in hint_texts:
            self.extend(text)
        self.extend(prompt_token_ids)

    @property
    def num_bytes(self) -> int:
        return self._context.num_bytes

    def extend(self, token_ids: Sequence[int]) -> None:
        """Continue the text by tokens that the target did not choose: a prompt, another turn."""
        tokens = np.array(token_ids, np.int32)
        self._num_nodes = 0
        self._context.extend(tokens)
        self._state[:] = -1
        recent = tokens[-ORDER:] if len(tokens) >= ORDER else self._context.text[1 : self._context.end][-ORDER:]
        self._state[: len(recent)] = recent[::-1]
        datastores = self.core.datastores
        match = self._state[layout.DATASTORE_STATE : layout.DATASTORE_STATE + datastore.STATE]
        datastore.find(datastores.files, recent, len(recent), match)
        self._answer_begin = max(1, self._context.end - PROMPT_TAIL)

    def draft(self, max_nodes: int, max_depth: int, proposals: Sequence[DraftTree | None] = ()) -> DraftTree:
        """A tree of at most max_nodes nodes, the root included, and max_depth levels below the root.

        proposals: checked ones, one of each further source, None where it proposes nothing.
        """
        core = self.core
        max_nodes, max_depth = min(max_nodes, core.config.max_nodes, _MAX_NODES), min(max_depth, core.config.max_depth)
        n = self._grow(max_nodes, max_depth, proposals)
        token_ids, parents, _, sources = self._nodes[: tree.SOURCE + 1, :n].tolist()
        names = [core.names[source] for source in sources]
        names[0] = ""
        return DraftTree(token_ids, parents, names, self._values[1, :n].tolist())

    def top_probability(self, proposals: Sequence[DraftTree | None] = ()) -> float:
        """How likely the likeliest next token is; 0 where none is named. It takes a fraction of a draft."""
        return float(self._values[1, 1]) if self._grow(2, 1, proposals) == 2 else 0.0

    def _grow(self, max_nodes: int, max_depth: int, proposals: Sequence[DraftTree | None]) -> int:
        """Draft into the arrays. Returns how many nodes there are."""
        self._check_epoch()
        roots_state = self._state[layout.PROPOSAL_STATE : layout.PROPOSAL_STATE + layout.NUM_PROPOSALS]
        roots_state[:] = -1
        if any(proposal is not None for proposal in proposals):
            self._proposals, roots = pack_proposals(proposals)
            roots_state[: len(roots)] = roots
        self._num_nodes = tree.draft(self._current_arrays(), max_nodes, max_depth)
        return self._num_nodes

    def observe(self, token_ids: Sequence[int]) -> None:
        """Learn that the text continued with `token_ids`, and how the draft made for them fared."""
        num_tokens = len(token_ids)
        self._check_epoch()
        self._context.reserve(num_tokens)
        tokens = np.array(token_ids, np.int32)
        num_counted = learning.observe(self._current_arrays(), tokens, self._num_nodes, self._context.end)
        self._context.went_on(num_tokens, num_counted)
        if self._state[layout.HISTORY_STATE + 1] >= _USED_LENGTH:
            self.core.history.note_use(int(self._state[layout.HISTORY_STATE]))
        self._num_nodes = 0

    def finish(self) -> list[Int32Array]:
        """Add the answer to the history. Returns the past texts that were used meanwhile, now remembered for longer."""
        history = self.core.history
        used = history.renew_used()
        history.add(self._context.text[self._answer_begin : self._context.end])
        return used

    def _check_epoch(self) -> None:
        if self._epoch != self.core.history.epoch:
            self._epoch = self.core.history.epoch
            self._state[layout.HISTORY_STATE : layout.HISTORY_STATE + 4] = -1
            self._num_nodes = 0  # its states have positions, too

    def _current_arrays(self) -> Arrays:
        """The kernels' argument, packed again if an array was replaced by a larger one."""
        core, sources = self.core, self._sources
        if (
            sources is None
            or sources.context is not self._context.arrays
            or sources.history is not core.history.arrays
            or sources.successors is not core.successors.arrays
            or sources.proposals is not self._proposals
        ):
            stores = (self._context.arrays, core.history.arrays, core.successors.arrays)
            sources = EvidenceSources(*stores, core.datastores.files, self._proposals)
            draft = (self._nodes, self._values, self._states, self._evidences)
            shared = (core.parameters, core.scratch, core.work)
            self._arrays = packed(Arrays(sources, self._state, *draft, *shared))
            self._sources = sources
        return self._arrays

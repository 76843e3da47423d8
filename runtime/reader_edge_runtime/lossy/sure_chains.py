"""Chains that a small model writes while it is sure: a draft model's, or a speculator's.

Both are asked as they are in exact decoding: where that pays, of late and on this machine, so that the time of their
passes is theirs, and never keeps other drafts from being made. Where no times are known they always are.
"""

from collections.abc import Sequence

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest
from reader_edge_runtime.drafting.sources.draft_chain import DraftChain
from reader_edge_runtime.drafting.sources.draft_model import DraftModel
from reader_edge_runtime.drafting.sources.draft_model_source import DraftModelSource
from reader_edge_runtime.drafting.sources.speculator.growth import MAX_STEPS
from reader_edge_runtime.drafting.sources.speculator.speculated_tree import Candidate
from reader_edge_runtime.drafting.sources.speculator.speculator import Speculator
from reader_edge_runtime.drafting.sources.speculator.speculator_source import Growing, SpeculatorSource
from reader_edge_runtime.drafting.worth import is_paid


class SureModelSource(DraftModelSource):
    """A draft model that writes on while its likeliest token has `confidence`, and a further pass pays."""

    def __init__(self, confidence: float, model: DraftModel, vocab_size: int, context: int = 0) -> None:
        super().__init__(model, vocab_size, context)
        self._confidence = confidence

    def _goes_on(self, chain: DraftChain, draft_request: DraftRequest) -> bool:
        return chain.last_probability >= self._confidence and super()._goes_on(chain, draft_request)


class SureSpeculatorSource(SpeculatorSource):
    """A speculator that does the same, instead of growing a tree."""

    def __init__(
        self,
        confidence: float,
        speculator: Speculator,
        state_ids: Sequence[int],
        vocab_size: int,
        max_slots: int,
        agreement: float | None = None,
    ) -> None:
        super().__init__(speculator, state_ids, vocab_size, max_slots, agreement)
        self._confidence = confidence

    def _chosen(self, growing: Growing) -> list[Candidate]:
        """The chain's end, which the next pass scores; none where that is unsure, or does not pay."""
        tree, draft_request, progress = growing
        named, parent, end = tree.tree, 0, 0
        for _ in range(progress.num_steps + 1):
            parent, end = end, _likeliest_child(named, end)
        is_sure = end > 0 and named.values[end] >= self._confidence * named.values[parent]
        pays = is_paid(named.values[end], draft_request.token_s, self.times.seconds(1))
        progress.num_steps += 1  # which makes it the chain's depth
        most = min(MAX_STEPS, draft_request.max_depth, draft_request.max_nodes - 1)
        if not is_sure or not pays or progress.num_steps >= most:
            return []
        return [Candidate(0.0, parent, named.token_ids[end])]


def _likeliest_child(tree: DraftTree, node: int) -> int:
    """The first one, as small models name them; 0 for none."""
    return next((child for child in range(node + 1, len(tree)) if tree.parents[child] == node), 0)

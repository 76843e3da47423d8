"""The decoder of the rule `views`: it reads a prompt's retrieved passages before its last tokens are scored."""

from collections.abc import Mapping, Sequence

from reader_edge_lossy.deviation import DeviationMeter
from reader_edge_lossy.views_target import ViewsCache, ViewsResult, ViewsTarget
from reader_edge_runtime.acceptance import AcceptanceRule, Choices
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.draft_permission import DraftPermission
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.decoding.prefill import Prefill
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.scorer import Scorer
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.drafting.sources.draft_model_source import read_passages
from reader_edge_runtime.forward_result import ForwardResult

LEAST_CONTEXT = 64  # tokens of a view: half of them are the prompt's end, which has its last chunk
_LAST_CHUNK = 16  # tokens, which both views score in one pass
_PASSAGE, _QUERY = 64, 32  # tokens


def retrieved(token_ids: Sequence[int], num_tokens: int) -> list[int]:
    """At most so many tokens of a prompt: its end, and what bears on its last ones."""
    return read_passages(token_ids, num_tokens, _PASSAGE, _QUERY)


class ViewsRule(AcceptanceRule):
    """Of one answer: what the mixture chooses, counted against what the whole text alone would have."""

    def __init__(self, meter: DeviationMeter) -> None:
        self.name = meter.rule
        self.meter = meter

    def next_token(self, choices: Choices, node: int) -> int:
        return choices.peek(node)

    def count(self, own: int, token_id: int, logits: Float32Array) -> None:
        """Count an emitted token. own: the whole text's choice there, by its logits (V,)."""
        if token_id != own:
            self.meter.change(float(logits[own] - logits[token_id]))

    def report(self, token_ids: Sequence[int]) -> Mapping[str, object]:
        return self.meter.report(token_ids)


class ViewsDecoder(Decoder):
    """context: tokens of a prompt that the retrieved view has at most."""

    def __init__(
        self,
        target: ViewsTarget,
        drafter: Drafter,
        config: EngineConfig,
        planner: Planner,
        near_tie_margin: float,
        permission: DraftPermission,
        context: int,
    ) -> None:
        super().__init__(target, drafter, config, planner, near_tie_margin, permission)
        assert isinstance(self.cache, ViewsCache)
        self._scorer = MeteredScorer(target, self.cache, drafter)
        prefill = ViewsPrefill(self._scorer, self.slots, permission, config.prefill_chunk)
        prefill.target, prefill.cache, prefill.context = target, self.cache, context
        self._prefill = prefill


class ViewsPrefill(Prefill):
    target: ViewsTarget
    cache: ViewsCache
    context: int

    def score_chunk(self, request: Request, slot: int, planner: Planner) -> int:
        length, end = self.cache.lengths[slot], request.prefill_end
        if length < end and self._chunk_end(request, length) == end:
            answer = request.token_ids[request.num_prompt_tokens : end]
            view = retrieved(request.token_ids[: request.num_prompt_tokens], self.context) + answer
            self.target.read_view(self.cache, slot, view[: len(view) - (end - length)])
        return super().score_chunk(request, slot, planner)

    def _chunk_end(self, request: Request, length: int) -> int:
        end, last = super()._chunk_end(request, length), request.prefill_end - _LAST_CHUNK
        return last if length < last < end else end


class MeteredScorer(Scorer):
    """Counts each token against what the whole text alone would have had there."""

    def take(self, request: Request, result: ForwardResult, b: int, row: int, token_id: int) -> bool:
        assert isinstance(result, ViewsResult)
        assert isinstance(request.acceptance, ViewsRule)
        request.acceptance.count(request.peek(result.whole, b, row, True), token_id, result.whole.wanted_logits[b, row])
        return super().take(request, result, b, row, token_id)

"""A target as a draft model, which tells how wide its passes are, and what a source is asked for and proposes of it."""

from collections.abc import Sequence

from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest
from reader_edge_runtime.drafting.sources.draft_model import DraftModel
from reader_edge_runtime.drafting.sources.draft_model_source import DraftModelRequest, DraftModelSource
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Pass
from tests.fake_target import FakeTarget, make_manifest

MANIFEST = make_manifest(vocab_size=6, max_context=200)


class DraftingTarget(FakeTarget):
    """Tells how wide its passes are; breaks when it is told to. chunk: tokens of a prompt that it reads at once."""

    def __init__(self, manifest: Manifest = MANIFEST, order: int = 3, chunk: int = 64, sharpness: float = 9.0) -> None:
        super().__init__(manifest, order, sharpness)
        self.chunk = chunk
        self.widths: list[list[int]] = []
        self.is_broken = False

    def prefill_chunk(self, past: int) -> int:
        return self.chunk

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        if self.is_broken:
            raise ProviderError("ONNX Runtime failed in a pass.")
        self.widths.append(list(map(len, wanted.trees)))
        return super().forward(cache, wanted)


class OddTarget(DraftingTarget):
    """Says what no model should: token_id, with this logit, is likeliest by far."""

    def __init__(self, token_id: int, logit: float) -> None:
        super().__init__()
        self.token_id, self.logit = token_id, logit

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        result = super().forward(cache, wanted)
        result.top_ids[...] = self.token_id
        result.top_logits[...] = self.logit
        return result


def source_of(target: FakeTarget, vocab_size: int = MANIFEST.vocab_size) -> DraftModelSource:
    source = DraftModelSource(DraftModel(target, 4), vocab_size)
    if isinstance(target, DraftingTarget):
        target.widths.clear()  # those that were measured
    return source


def greedy(target: FakeTarget, token_ids: Sequence[int], count: int) -> list[int]:
    text = list(token_ids)
    for _ in range(count):
        text.append(int(target.logits_after(text).argmax()))
    return text[len(token_ids) :]


def draft_request_of(request: DraftModelRequest, max_depth: int = 3, token_s: float = 0.0) -> DraftRequest:
    return DraftRequest(request, 32, max_depth, token_s)


def chain_of(proposal: DraftTree | None) -> list[int]:
    """The tokens of the chain: the first named below each of its nodes."""
    assert proposal is not None
    token_ids, node = list[int](), 0
    while node in proposal.parents:
        node = proposal.parents.index(node)
        token_ids.append(proposal.token_ids[node])
    return token_ids

"""A KV cache of 8 or 16 bits: the same bits at every width, in every batch, drafted or not; and what it takes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reader_edge_export import ExportOptions
from reader_edge_export.checks.parity import TreeAgainstDecoding, TreeCase
from reader_edge_export.package.pass_chain import WholePackage, figures_of
from reader_edge_export.package_graph import TOP_K
from reader_edge_runtime.config import EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.errors import ProviderError, ReaderEdgeError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.export.whole_models import logits_after
from tests.random_drafter import RandomDrafter, RandomRequest, decode
from tests.tiny_models import VOCAB_SIZE

TEXT = np.random.default_rng(0).integers(3, VOCAB_SIZE, 110).tolist()
FORMS = [  # model, precision, cache
    ("llama", "int8", "int8"),
    ("llama", "int8", "fp16"),
    ("llama", "fp32", "fp16"),
    ("gemma2", "int8", "int8"),
    ("gemma2", "fp32", "fp16"),
]
PARENTS = [-1, 0, 0, 1, 1, 2, 4, 6]
PATH = [0, 1, 4, 6, 7]


@pytest.fixture(params=FORMS, ids="-".join)
def package(request: pytest.FixtureRequest, exported: Callable[..., Path]) -> ModelPackage:
    """Of a model with attention as an operator of our own, and of one with scores that are capped, and windows."""
    model_type, precision, kv = request.param
    return ModelPackage.open(exported(model_type, precision, "exact", kv, is_checked=False))


@pytest.fixture(params=[False, True], ids=["pure", "native"])
def target(request: pytest.FixtureRequest, package: ModelPackage) -> HostTarget:
    if request.param and native_library() is None:
        pytest.skip("no native kernels: `python native/build_library.py` builds them")
    return HostTarget.open(package, 1, uses_native=request.param)


def test_the_cache_is_int8_where_attention_rounds_anyway() -> None:
    assert {ExportOptions(precision).kv_dtype for precision in ("int8", "int8-a16", "int4")} == {"int8"}
    assert ExportOptions("fp32").kv_dtype == "float32"
    assert ExportOptions("int8", kv="fp32").kv_dtype == "float32"
    assert {ExportOptions(precision, kv="fp16").kv_dtype for precision in ("fp32", "int8")} == {"float16"}
    assert {ExportOptions("int8", attention).kv_dtype for attention in ("fast", "portable")} == {"float32"}
    assert [ExportOptions(half, "fast").kv_dtype for half in ("fp16", "bf16")] == ["float16", "bfloat16"]


def test_the_cache_takes_half_or_a_quarter_and_two_bytes_a_row(package: ModelPackage) -> None:
    manifest = package.manifest
    row_bytes = {"int8": manifest.head_dim + 2, "float16": 2 * manifest.head_dim}[manifest.kv_dtype]
    assert manifest.kv_row_bytes == 2 * manifest.num_layers * manifest.num_kv_heads * row_bytes
    wide = replace(manifest, kv_dtype="float32")
    with pytest.raises(ProviderError, match="export again"):
        HostTarget.open(ModelPackage(package.folder, wide))


def test_a_token_gets_the_same_bits_at_every_width(target: HostTarget) -> None:
    single = logits_after(target, TEXT[:30], TEXT[30:], 1)
    for width in (2, 3, 4, 5, 7, 8, 9, 16, 33, 64, 80):
        np.testing.assert_array_equal(logits_after(target, TEXT[:30], TEXT[30:], width), single)


def test_nodes_of_a_ragged_batch_get_the_bits_of_plain_decoding(target: HostTarget, package: ModelPackage) -> None:
    case = TreeCase.draw(package.manifest, TEXT)
    checks = figures_of(WholePackage(target), [TreeAgainstDecoding(case)])
    assert checks["tree_rows_equal"] == 1


def test_committed_rows_are_those_of_a_fresh_prefill(target: HostTarget) -> None:
    tree = DraftTree(TEXT[60 : 60 + len(PARENTS)], PARENTS, [""] * len(PARENTS))
    cache = _prefilled(target, TEXT[:50])
    target.forward(cache, Pass(0, [tree], [[0]]))
    cache.commit(0, PATH)
    fresh = _prefilled(target, TEXT[:50] + [tree.token_ids[node] for node in PATH])
    assert cache.lengths == fresh.lengths
    np.testing.assert_array_equal(cache.slab[:, 0, :, : fresh.lengths[0]], fresh.slab[:, 0, :, : fresh.lengths[0]])


class _Knowing(RandomDrafter):
    """Trees that hold a known text at scattered nodes, between others; a single node where none is known."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        super().__init__(VOCAB_SIZE, 1, 0)
        self._texts = texts

    def begin(self, context: RequestContext) -> RandomRequest:
        return RandomRequest(context, TOP_K)

    def draft(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | ReaderEdgeError]:
        return [self._knowing_tree(draft_request) for draft_request in draft_requests]

    def _knowing_tree(self, draft_request: DraftRequest) -> DraftTree:
        token_ids = list(draft_request.request.token_ids)
        text = next((text for text in self._texts if list(text[: len(token_ids)]) == token_ids), token_ids)
        tree, node = DraftTree.root(token_ids[-1]), 0
        for token_id in text[len(token_ids) :][: min(draft_request.max_depth, (draft_request.max_nodes - 1) // 2)]:
            tree.add((token_id + 1) % VOCAB_SIZE, node, "wrong", value=0.5 * tree.values[node])
            node = tree.add(token_id, node, "right", value=0.5 * tree.values[node])
        return tree


def test_drafted_answers_are_the_plain_ones(target: HostTarget) -> None:
    prompts, config = [TEXT[:20], TEXT[40:49]], GenerationConfig(max_tokens=40)
    plain = decode(_decoder(target, _Knowing([])), prompts, [config] * 2)
    texts = [[*prompt, *answer] for prompt, answer in zip(prompts, plain, strict=True)]
    decoder = _decoder(target, _Knowing(texts))
    assert decode(decoder, prompts, [config] * 2) == plain
    again = decode(decoder, prompts, [config] * 2)  # on the prefix that the slots still hold
    assert again == plain


def _decoder(target: HostTarget, drafter: _Knowing) -> Decoder:
    return Decoder(target, drafter, EngineConfig(max_batch=2))


def _prefilled(target: HostTarget, token_ids: list[int]) -> HostCache:
    cache = target.new_cache(1, len(token_ids) + len(PARENTS))
    target.forward(cache, Pass(0, [DraftTree.chain(token_ids)], [[0]]))
    cache.commit(0, list(range(len(token_ids))))
    return cache

"""Hidden states that packages report, KV caches of 8 or 16 bits, new rows as results: the same bits."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from reader_edge_export import ExportOptions
from reader_edge_export.checks.parity import TreeAgainstDecoding, TreeCase
from reader_edge_export.package.pass_chain import WholePackage, figures_of
from reader_edge_export.package_graph import TOP_K
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.config import EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.errors import ProviderError, ReaderEdgeError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_rows_runner import HostRowsRunner
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.providers import open_target
from reader_edge_runtime.execution.rows.rows_target import RowsTarget
from reader_edge_runtime.measuring.width_probe import probe_width
from reader_edge_runtime.package.manifest import WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target
from tests.export.conftest import Exported, TinyModel
from tests.export.source_models import logits_after
from tests.random_drafter import RandomDrafter, RandomRequest, decode
from tests.tiny_models import VOCAB_SIZE

TOKENS = [5, 9, 2, 40, 17, 3]


def states_of(package: Path, trees: list[list[int]]) -> Float32Array:
    """The states after a chain's tokens, from passes over parts of it."""
    target = HostTarget.open(ModelPackage.open(package))
    cache, states = target.new_cache(1, 16), []
    for tokens in trees:
        rows = list(range(len(tokens)))
        result = target.forward(cache, Pass(0, [DraftTree.chain(tokens)], [rows], wants_hidden_states=True))
        assert result.hidden_states is not None
        states.append(result.hidden_states[0].copy())
        cache.commit(0, rows)
    return np.concatenate(states)


def test_hidden_states_are_the_sources_last_ones(exported: Exported, tiny_model: TinyModel) -> None:
    module = AutoModelForCausalLM.from_pretrained(tiny_model("llama"))
    with torch.no_grad():
        expected = module.model(torch.tensor([TOKENS])).last_hidden_state[0].numpy()
    np.testing.assert_allclose(
        states_of(exported("llama", "fp32", "exact", is_checked=False), [TOKENS]), expected, atol=2e-5
    )


def test_hidden_states_have_the_same_bits_at_every_width(exported: Exported) -> None:
    package = exported("llama", "int8", "exact", is_checked=False)
    together, alone = states_of(package, [TOKENS]), states_of(package, [[token] for token in TOKENS])
    assert (together == alone).all()


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "gpt2", "qwen3_5_text", "gemma4_text"])
def test_states_are_those_between_layers(exported: Exported, tiny_model: TinyModel, architecture: str) -> None:
    package = ModelPackage.open(exported(architecture, "fp32", "exact", is_checked=False))
    manifest, target = package.manifest, HostTarget.open(package)
    num_layers = manifest.num_layers
    assert manifest.state_ids == tuple(sorted({2, num_layers // 2, max(num_layers - 3, 0), num_layers + 1}))
    wanted = Pass(0, [DraftTree.chain(TOKENS)], [[len(TOKENS) - 1]], wants_layer_states=True, num_kept=len(TOKENS))
    result = target.forward(target.new_cache(1, 16), wanted)
    assert result.layer_states is not None
    module = AutoModelForCausalLM.from_pretrained(tiny_model(architecture))
    with torch.no_grad():
        states = module(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    for number, found in zip(manifest.state_ids, result.layer_states[:, 0], strict=True):
        if number != num_layers:  # transformers tells the last layer's only behind the norm
            np.testing.assert_allclose(found, states[min(number, num_layers)][0].numpy(), atol=5e-5)


def test_packages_for_devices_report_none(exported: Exported) -> None:
    package = ModelPackage.open(exported("llama", "fp32", "fast", is_checked=False))
    assert package.manifest.state_ids == ()


def test_states_that_no_graph_reports_are_refused(exported: Exported) -> None:
    target = HostTarget.open(ModelPackage.open(exported("llama", "fp32", "fast", is_checked=False)))
    with pytest.raises(ProviderError, match="no states of its layers"):
        target.forward(target.new_cache(1, 16), Pass(0, [DraftTree.chain([1])], [[0]], wants_layer_states=True))


PROMPTS = [[5, 9, 13, 21, 34, 55, 89, 40, 41], [7, 11, 200]]
TREES = [DraftTree([8, 9, 10, 11, 12], [-1, 0, 0, 1, 2], [""] * 5), DraftTree([40, 41, 42], [-1, 0, 1], [""] * 3)]


class OfWidth(HostRowsRunner):
    """A runner whose passes all have the same width, as modules compiled for one have."""

    def __init__(self, package: ModelPackage, width: int) -> None:
        super().__init__(package, 1)
        self._width = width

    def width_for(self, num_nodes: int) -> int:
        return self._width


@pytest.fixture(params=["llama", "gemma2"])
def package(request: pytest.FixtureRequest, exported: Exported) -> ModelPackage:
    """gemma2 has windowed layers and capped scores."""
    return ModelPackage.open(exported(request.param, "fp32", "portable-exact"))


def test_they_compute_what_packages_with_a_cache_in_place_do(package: ModelPackage, exported: Exported) -> None:
    other = ModelPackage.open(exported(package.manifest.architecture, "fp32", "exact"))
    expected = tree_logits(HostTarget.open(other, 1))
    np.testing.assert_allclose(tree_logits(open_target(package, EngineConfig(threads=1))), expected, atol=1e-5)
    assert package.manifest.checks["tree_rows_equal"] == 1.0


@pytest.mark.parametrize("width", [1, 3, 8])
def test_a_pass_in_parts_or_padded_has_the_bits_of_the_whole(package: ModelPackage, width: int) -> None:
    whole, parts = (RowsTarget(runner) for runner in (HostRowsRunner(package, 1), OfWidth(package, width)))
    np.testing.assert_array_equal(tree_logits(parts), tree_logits(whole))


def test_a_row_wanted_several_times_is_given_as_often(package: ModelPackage) -> None:
    target = RowsTarget(OfWidth(package, 3))
    cache = target.new_cache(2, 16)
    wanted = Pass(0, TREES, [[4], [0, 1, 1, 2, 2, 2]], wants_logits=True)
    logits = target.forward(cache, wanted).wanted_logits
    whole = target.forward(cache, Pass(0, TREES, [[4], [0, 1, 2]], wants_logits=True)).wanted_logits
    np.testing.assert_array_equal(logits[1], whole[1][[0, 1, 1, 2, 2, 2]])
    np.testing.assert_array_equal(logits[0], np.repeat(whole[0][:1], 6, axis=0))


def test_they_keep_their_bits_in_trees(package: ModelPackage) -> None:
    assert probe_width(open_target(package, EngineConfig(threads=1))).is_invariant


def test_the_last_rows_of_the_context_have_room_for_padding(package: ModelPackage) -> None:
    max_context = package.manifest.max_context
    for target in (RowsTarget(HostRowsRunner(package, 1)), RowsTarget(OfWidth(package, 64))):
        cache = target.new_cache(1, max_context)
        cache.assume(0, max_context - 1)
        logits = target.forward(cache, Pass(0, [DraftTree.root(5)], [[0]], wants_logits=True)).wanted_logits
        assert np.isfinite(logits).all()


def test_int8_computes_what_it_does_in_exact_attention(exported: Exported) -> None:
    portable, exact = (ModelPackage.open(exported("llama", "int8", form)) for form in ("portable", "exact"))
    expected = tree_logits(open_target(exact, EngineConfig(threads=1)))
    found = tree_logits(open_target(portable, EngineConfig(threads=1)))
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


def test_in_fp16_matrices_alone_are_rounded(exported: Exported) -> None:
    whole, half = (ModelPackage.open(exported("llama", precision, "portable")) for precision in ("fp32", "fp16"))
    expected = tree_logits(open_target(whole, EngineConfig(threads=1)))
    found = tree_logits(open_target(half, EngineConfig(threads=1)))
    np.testing.assert_allclose(found, expected, atol=0.01 * np.abs(expected).max())
    assert half.manifest.kv_dtype == "float32"
    assert half.manifest.files[WEIGHTS_NAME].num_bytes < 0.55 * whole.manifest.files[WEIGHTS_NAME].num_bytes


def tree_logits(target: Target) -> Float32Array:
    """Of both trees behind their prompts, those of all nodes (B, N, V)."""
    cache = target.new_cache(2, 16)
    for slot, prompt in enumerate(PROMPTS):
        target.forward(cache, Pass(slot, [DraftTree.chain(prompt)], [[0]]))
        cache.commit(slot, list(range(len(prompt))))
    rows = [list(range(len(tree))) for tree in TREES]
    logits: Float32Array = target.forward(cache, Pass(0, TREES, rows, wants_logits=True)).wanted_logits.copy()
    return logits


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
def rounded(request: pytest.FixtureRequest, exported: Exported) -> ModelPackage:
    """Of a model with attention as an operator of our own, and of one with scores that are capped, and windows."""
    model_type, precision, kv = request.param
    return ModelPackage.open(exported(model_type, precision, "exact", kv, is_checked=False))


@pytest.fixture(params=[False, True], ids=["pure", "native"])
def target(request: pytest.FixtureRequest, rounded: ModelPackage) -> HostTarget:
    if request.param and native_library() is None:
        pytest.skip("no native kernels: `python native/build_library.py` builds them")
    return HostTarget.open(rounded, 1, uses_native=request.param)


def test_the_cache_is_int8_where_attention_rounds_anyway() -> None:
    assert {ExportOptions(precision).kv_dtype for precision in ("keep", "int8", "int8-a16", "int4")} == {"int8"}
    assert ExportOptions("fp32").kv_dtype == "float32"
    assert ExportOptions("int8", kv="fp32").kv_dtype == "float32"
    assert {ExportOptions(precision, kv="fp16").kv_dtype for precision in ("fp32", "int8")} == {"float16"}
    assert {ExportOptions("int8", attention).kv_dtype for attention in ("fast", "portable")} == {"float32"}
    assert [ExportOptions(half, "fast").kv_dtype for half in ("fp16", "bf16")] == ["float16", "bfloat16"]


def test_the_cache_takes_half_or_a_quarter_and_two_bytes_a_row(rounded: ModelPackage) -> None:
    manifest = rounded.manifest
    row_bytes = {"int8": manifest.head_dim + 2, "float16": 2 * manifest.head_dim}[manifest.kv_dtype]
    assert manifest.kv_row_bytes == 2 * manifest.num_layers * manifest.num_kv_heads * row_bytes
    wide = replace(manifest, kv_dtype="float32")
    with pytest.raises(ProviderError, match="export again"):
        HostTarget.open(ModelPackage(rounded.folder, wide))


def test_a_token_gets_the_same_bits_at_every_width(target: HostTarget) -> None:
    single = logits_after(target, TEXT[:30], TEXT[30:], 1)
    for width in (2, 3, 4, 5, 7, 8, 9, 16, 33, 64, 80):
        np.testing.assert_array_equal(logits_after(target, TEXT[:30], TEXT[30:], width), single)


def test_nodes_of_a_ragged_batch_get_the_bits_of_plain_decoding(target: HostTarget, rounded: ModelPackage) -> None:
    case = TreeCase.draw(rounded.manifest, TEXT)
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

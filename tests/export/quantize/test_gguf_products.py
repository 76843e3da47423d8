"""Blocks of GGUF files: the library's values bit for bit, and matrices that stay as they are in packages."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx_ir as ir
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers.pytorch_utils import Conv1D

from reader_edge_export import ExportOptions, ExportReport, export_model
from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.blocks.blocks import Blocks, unpack_blocks
from reader_edge_export.blocks.native_header import header
from reader_edge_export.quantize.gguf_products import StoredTypes
from reader_edge_export.sources.find import find_source
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, GgufError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.machine.processor import has_saturating_sums
from reader_edge_runtime.measuring.width_probe import probe_width
from reader_edge_runtime.package.manifest import GRAPH_NAME, SUCCESSORS_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.conftest import ROOT
from tests.export.conftest import TinyModel
from tests.export.gguf_models import GGUF_MODELS, build_source, write_model
from tests.export.source_models import load_model, open_source
from tests.gguf_files import random_rows


@pytest.fixture(params=BLOCK_TYPES)
def kind(request: pytest.FixtureRequest) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[request.param]


def test_the_header_of_the_kernels_is_the_table() -> None:
    assert (ROOT / "native" / "src" / "products" / "gguf" / "gguf_types.h").read_text(encoding="utf-8") == header()


def test_types_are_as_large_as_the_library_has_them(kind: gguf.GGMLQuantizationType) -> None:
    block_type = BLOCK_TYPES[kind.name]
    assert (block_type.unit_inputs, block_type.unit_bytes) == gguf.GGML_QUANT_SIZES[kind]


@pytest.mark.parametrize("page", ["docs/explanation/quantisation.md", "docs/how-to/gguf.md", "native/README.md"])
def test_pages_that_name_the_types_name_them_all(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert not [name for name in BLOCK_TYPES if not re.search(rf"\b{name}(Linear)?\b", text)]


def test_blocks_have_the_bits_of_the_library(kind: gguf.GGMLQuantizationType) -> None:
    rows = random_rows(kind, (37, 768), np.random.default_rng(0))
    expected = gguf.dequantize(rows, kind)
    blocks = unpack_blocks(BLOCK_TYPES[kind.name], rows)
    assert blocks.shape == (37, 768)
    assert np.abs(expected).max() > 0.01
    np.testing.assert_array_equal(blocks.dequantized(slice(None)).view(np.uint32), expected.view(np.uint32))
    np.testing.assert_array_equal(blocks.dequantized(slice(30, 99)), expected[30:])


def test_matrices_side_by_side_keep_their_values(kind: gguf.GGMLQuantizationType) -> None:
    rng = np.random.default_rng(1)
    parts = [random_rows(kind, (num_outputs, 256), rng) for num_outputs in (3, 18)]
    joined = Blocks.joined([unpack_blocks(BLOCK_TYPES[kind.name], rows) for rows in parts])
    expected = np.concatenate([gguf.dequantize(rows, kind) for rows in parts])
    np.testing.assert_array_equal(joined.dequantized(slice(None)), expected)


def test_blocks_take_no_more_room_than_in_the_file(kind: gguf.GGMLQuantizationType) -> None:
    rows = random_rows(kind, (16, 512), np.random.default_rng(2))
    blocks = unpack_blocks(BLOCK_TYPES[kind.name], rows)
    num_bytes = sum(array.nbytes for array in blocks.arrays.values())
    assert list(blocks.arrays) == list(blocks.block_type.parts)
    assert num_bytes <= 1.03 * rows.nbytes  # six bits of a scale are eight


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q8_0", "Q6_K", "MXFP4", "IQ4_NL", "IQ4_XS"])
def test_extreme_codes_and_nought_keep_their_values(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    rows = random_rows(kind, (4, 256), np.random.default_rng(3))
    rows[0], rows[1], rows[2] = 0, 0x7B, 0xFB
    rows[3, :] = 0x80
    expected = gguf.dequantize(rows, kind)
    blocks = unpack_blocks(BLOCK_TYPES[name], rows)
    np.testing.assert_array_equal(blocks.dequantized(slice(None)).view(np.uint32), expected.view(np.uint32))


def test_every_power_of_two_and_every_level_keeps_its_value() -> None:
    kind = gguf.GGMLQuantizationType.MXFP4
    rows = np.zeros((253, 17), np.uint8)  # beyond are infinite weights
    rows[:, 0] = np.arange(253)
    rows[:, 1:] = np.arange(16) * 17
    blocks = unpack_blocks(BLOCK_TYPES["MXFP4"], rows)
    expected = gguf.dequantize(rows, kind)
    assert (expected[0, 1], expected[252, 7]) == (2.0**-128, 1.5 * 2.0**127)
    np.testing.assert_array_equal(blocks.dequantized(slice(None)).view(np.uint32), expected.view(np.uint32))


# Every type, and one that does not stay; queries, keys and values of one kind and of two.
_MIXED = {
    **{"token_embd": "Q6_K", "output": "Q8_0"},
    **{f"blk.0.{name}": "Q4_K" for name in ("attn_q", "attn_k")},
    **{"blk.0.ffn_gate": "IQ4_XS", "blk.1.attn_output": "IQ4_NL"},
    **{"blk.0.attn_v": "Q6_K", "blk.0.attn_output": "Q5_K", "blk.0.ffn_up": "Q5_0", "blk.0.ffn_down": "Q5_1"},
    **{f"blk.1.{name}": "Q4_1" for name in ("attn_q", "attn_k", "attn_v")},
    **{f"blk.1.{name}": "Q4_0" for name in ("ffn_gate", "ffn_up")},
    "blk.1.ffn_down": "F16",
}
_KEPT = {
    **{"Q4_K": 2, "Q6_K": 2, "Q5_K": 1, "Q5_0": 1, "Q5_1": 1, "Q4_1": 3, "Q4_0": 2, "Q8_0": 1},
    **{"IQ4_XS": 1, "IQ4_NL": 1},
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, ExportReport]:
    """A file of all types, its package, and what its export reported."""
    folder = tmp_path_factory.mktemp("mixed")
    changes = {"hidden_size": 256, "intermediate_size": 512, "tie_word_embeddings": False}
    model = build_source("llama", folder / "source", **changes)
    kinds = {f"{name}.weight": Kind[type_name] for name, type_name in _MIXED.items()}
    path = write_model(model, folder / "mixed.gguf", kinds=kinds)
    return path, folder / "out", export_model(path, folder / "out")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file of Q4_1 with tied embeddings in Q8_0 and biases, and its package."""
    folder = tmp_path_factory.mktemp("tied")
    model = build_source("qwen2", folder / "source")
    kinds = {"token_embd.weight": Kind.Q8_0}
    path = write_model(model, folder / "tied.gguf", Kind.Q4_1, kinds=kinds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reader_edge_export.package_export.calibrate", None)  # calling it would fail
        export_model(path, folder / "out", ExportOptions("keep"))
    return path, folder / "out"


def _kept_matrices(folder: Path) -> list[Float32Array]:
    """The matrices (J, K) of a package's products in the types of files, in their order."""
    matrices = []
    for node in ir.load(folder / GRAPH_NAME).graph:
        block_type = BLOCK_TYPES.get(node.op_type.removesuffix("Linear"))
        if block_type is not None and node.domain == "reader_edge":
            arrays = [value.const_value.numpy() for value in node.inputs[1:]]  # type: ignore[union-attr]
            blocks = Blocks(block_type, dict(zip(block_type.parts, arrays, strict=True)))
            matrices.append(blocks.dequantized(slice(None)))
    return matrices


def _side_by_side(path: Path, *groups: str) -> list[Float32Array]:
    """Weights of the file's model, dequantised by the package gguf, those of a group one after the other."""
    weights = dict(load_model(find_source(path, None)).named_parameters())
    return [
        np.concatenate([weights[f"model.{name}.weight"].detach().numpy() for name in group.split()]) for group in groups
    ]


def _assert_same(found: list[Float32Array], expected: list[Float32Array]) -> None:
    assert [matrix.shape for matrix in found] == [matrix.shape for matrix in expected]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


def test_every_type_keeps_its_bits_in_the_package(mixed: tuple[Path, Path, ExportReport]) -> None:
    path, folder, _ = mixed
    first, second = "layers.0.self_attn", "layers.1.self_attn"
    expected = _side_by_side(
        path,
        f"{first}.q_proj {first}.k_proj",
        f"{first}.v_proj",
        f"{first}.o_proj",
        "layers.0.mlp.gate_proj",
        "layers.0.mlp.up_proj",
        "layers.0.mlp.down_proj",
        f"{second}.q_proj {second}.k_proj {second}.v_proj",
        f"{second}.o_proj",
        "layers.1.mlp.gate_proj layers.1.mlp.up_proj",
    )
    head = load_model(find_source(path, None)).lm_head.weight.detach().numpy()
    _assert_same(_kept_matrices(folder), [*expected, head])


def test_products_of_several_types_are_read_as_one(mixed: tuple[Path, Path, ExportReport]) -> None:
    """Values are of another type than queries and keys in one layer, what a gate opens than the gate."""
    operators = Counter(node.op_type for node in ir.load(mixed[1] / GRAPH_NAME).graph)
    assert (operators["RotaryHeads"], operators["SwiGLU"]) == (2, 2)


@pytest.mark.long
def test_tied_embeddings_are_stored_once_and_keep_their_bits(tied: tuple[Path, Path]) -> None:
    path, folder = tied
    (embedding,) = _side_by_side(path, "embed_tokens")
    _assert_same(_kept_matrices(folder)[-1:], [embedding])
    arrays = [value.const_value for value in ir.load(folder / GRAPH_NAME).graph.initializers.values() if value.uses()]
    of_tokens = [array for array in arrays if array is not None and tuple(array.shape)[:1] == (len(embedding),)]
    assert sum(array.nbytes for array in of_tokens) < 0.27 * embedding.nbytes


def test_what_stays_and_what_does_not_is_reported(mixed: tuple[Path, Path, ExportReport]) -> None:
    _, folder, report = mixed
    assert (report.precision, report.kept_types, report.other_types) == ("keep", _KEPT, {"F16": 1})
    manifest = ModelPackage.open(folder).manifest
    assert (manifest.precision, manifest.kept_types, manifest.kv_dtype) == ("keep", _KEPT, "int8")


def test_a_package_is_close_to_its_file(mixed: tuple[Path, Path, ExportReport], tied: tuple[Path, Path]) -> None:
    for folder in (mixed[1], tied[1]):
        checks = ModelPackage.open(folder).manifest.checks
        assert checks["tree_rows_equal"] == 1
        assert checks["mean_kl_nats"] < 0.01


@pytest.mark.parametrize("uses_native", [True, False])
@pytest.mark.parametrize("name", ["mixed", "tied"])
def test_a_nodes_bits_depend_on_its_ancestors_only(
    name: str, uses_native: bool, request: pytest.FixtureRequest
) -> None:
    package = ModelPackage.open(request.getfixturevalue(name)[1])
    target = HostTarget.open(package, threads=1, uses_native=uses_native)
    report = probe_width(target)
    if not uses_native and has_saturating_sums():  # whose own products sum a row in another order by the width
        assert report.num_rows > report.num_equal
        return
    assert report.num_rows == report.num_equal > 0
    tokens = list(range(5, 69))
    alone = np.concatenate([_logits(target, tokens[:i], tokens[i : i + 1]) for i in range(0, 64, 9)])
    np.testing.assert_array_equal(_logits(target, [], tokens)[::9], alone)


def _logits(target: HostTarget, past: list[int], token_ids: list[int]) -> Float32Array:
    """Logits (N, V) after each of N tokens."""
    cache = target.new_cache(1, 80)
    if past:
        target.forward(cache, Pass(0, [DraftTree.chain(past)], [[0]]))
        cache.commit(0, list(range(len(past))))
    rows = [list(range(len(token_ids)))]
    result = target.forward(cache, Pass(0, [DraftTree.chain(token_ids)], rows, wants_logits=True))
    logits: Float32Array = result.wanted_logits[0].copy()
    return logits


def test_columns_in_another_order_cannot_stay_in_their_blocks(tmp_path: Path) -> None:
    model = build_source("qwen3_5_text", tmp_path / "source")
    opened = open_source(write_model(model, tmp_path, Kind.Q8_0))
    assert sum(StoredTypes.of(opened).num_others.values()) == 1
    assert opened.weights.block_type("model.layers.0.linear_attn.out_proj.weight") is None


@pytest.mark.parametrize("model_type", GGUF_MODELS)
def test_every_matrix_of_every_architecture_is_found_in_its_file(model_type: str, tmp_path: Path) -> None:
    changes: dict[str, dict[str, int]] = {
        "qwen3_5_text": {"linear_num_key_heads": 4},
        **{name: {"hidden_size_per_layer_input": 32} for name in ("gemma4_text", "gemma3n_text")},
        "qwen3_moe": {"moe_intermediate_size": 64},
        **{name: {"moe_intermediate_size": 64} for name in ("lfm2_moe", "ernie4_5_moe")},
        **{
            name: {"q_lora_rank": 64, "qk_nope_head_dim": 32, "moe_intermediate_size": 64}
            for name in ("deepseek_v3", "glm4_moe_lite")
        },
        "deepseek_v2": {"qk_nope_head_dim": 32, "moe_intermediate_size": 64},
        "minicpm3": {"q_lora_rank": 64},
        "qwen3_next": {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64},
        "qwen3_5_moe_text": {
            **{"linear_num_key_heads": 4, "moe_intermediate_size": 64},
            "shared_expert_intermediate_size": 64,
        },
    }
    model = build_source(model_type, tmp_path / "source", **changes.get(model_type, {}))
    path = write_model(model, tmp_path, Kind.Q8_0)
    opened = open_source(path)
    kept = StoredTypes.of(opened)
    assert kept.num_kept["Q8_0"] > 2 * 3
    is_whole = model_type != "gemma3n_text"  # some of whose matrices llama.cpp does not quantise
    assert (not kept.num_others, not kept.needs_calibration) == (is_whole, is_whole)
    turned = {f"{name}.weight" for name, module in opened.skeleton.named_modules() if isinstance(module, Conv1D)}
    for experts in opened.experts.values():
        for matrices in (experts.up, experts.down):
            np.testing.assert_array_equal(matrices.blocks(1).dequantized(slice(None)), matrices.read(1))
    for name in opened.names.values():
        if ".experts." in name:
            continue
        if opened.weights.block_type(name) is not None:
            values = opened.weights.read(name)
            blocks = opened.weights.blocks(name).dequantized(slice(None))
            np.testing.assert_array_equal(blocks, values.T if name in turned else values)


@pytest.mark.parametrize(
    ("kind", "options", "precision"),
    [
        (Kind.Q4_0, {}, "keep"),
        (Kind.Q8_0, {"attention": "fast"}, "keep"),
        (Kind.Q8_0, {"attention": "portable"}, "int8"),
        (Kind.Q8_0, {"calibration_text": Path("text")}, "int8"),
        (Kind.F16, {}, "int8"),
        (Kind.F32, {}, "int8"),
        (Kind.Q4_0, {"precision": "int4"}, "int4"),
    ],
)
def test_most_weights_decide_on_the_precision(
    kind: Kind, options: dict[str, Any], precision: str, tmp_path: Path
) -> None:
    model = build_source("llama", tmp_path / "source")
    path = write_model(model, tmp_path, kind)
    assert ExportOptions(**options).precision_for(find_source(path, None).is_kept) == precision


def test_a_model_that_is_no_gguf_file_is_rounded(tiny_model: TinyModel) -> None:
    assert ExportOptions().precision_for(find_source(tiny_model("llama"), None).is_kept) == "int8"


def test_nothing_to_keep_is_one_sentence(tiny_model: TinyModel, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'keep' is for GGUF files and for weights in MXFP4, and 'llama' is neither: use 'int8'"
    ):
        export_model(tiny_model("llama"), tmp_path / "out", ExportOptions("keep"))
    model = build_source("llama", tmp_path / "source")
    path = write_model(model, tmp_path / "half.gguf", Kind.F16)
    with pytest.raises(ConfigError, match=r"takes Q4_0, .* of which 'half.gguf' has none \(F16, F32\): use 'int8'"):
        export_model(path, tmp_path / "out", ExportOptions("keep"))
    with pytest.raises(ConfigError, match=r"'keep' has no portable form"):
        ExportOptions("keep", "portable")
    with pytest.raises(ConfigError, match=r"'keep' is not calibrated"):
        ExportOptions("keep", calibration_text=path)
    assert not (tmp_path / "out").exists()


def test_a_file_that_changes_under_an_export_is_refused(tmp_path: Path) -> None:
    model = build_source("llama", tmp_path / "source")
    path = write_model(model, tmp_path, Kind.Q8_0)
    weights = open_source(path).weights
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(GgufError, match="changed while it was read"):
        weights.blocks("model.layers.0.mlp.up_proj.weight")


def test_matrices_that_are_all_zeros_keep_their_own_types(tmp_path: Path) -> None:
    model = build_source("llama", tmp_path / "source", hidden_size=64)
    for name in ("q_proj", "k_proj"):
        torch.nn.init.zeros_(getattr(model.model.layers[0].self_attn, name).weight)
    kinds = {"blk.0.attn_q.weight": Kind.Q4_0, "blk.0.attn_k.weight": Kind.Q4_1}
    path = write_model(model, tmp_path, Kind.Q8_0, kinds=kinds)
    weights = open_source(path).weights
    for name, block_type in (("q_proj", "Q4_0"), ("k_proj", "Q4_1")):
        assert weights.block_type(f"model.layers.0.self_attn.{name}.weight") is BLOCK_TYPES[block_type]
        assert not weights.read(f"model.layers.0.self_attn.{name}.weight").any()


@pytest.mark.long
def test_a_first_start_measures_what_is_rounded(tied: tuple[Path, Path], tiny_model: TinyModel, tmp_path: Path) -> None:
    kept = export_model(tied[0], tmp_path / "kept", ExportOptions(check="auto"))
    rounded = export_model(tiny_model("llama"), tmp_path / "rounded", ExportOptions(check="auto"))
    assert (kept.precision, rounded.precision) == ("keep", "int8")
    assert not kept.checks  # no chat template, hence no conversations to compare
    assert rounded.checks["held_out_tokens"] == 128  # a tenth of few, and never fewer
    for name in ("kept", "rounded"):
        assert SUCCESSORS_NAME not in ModelPackage.open(tmp_path / name).manifest.files
    assert ExportOptions(check="full").check_for("keep") == "full"

"""A GGUF file: its header read or refused before anything is allocated, its tensors read as the module's own."""

import hashlib
import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.gguf import gguf_file
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.gguf_source import GgufSource
from reader_edge_export.sources.gguf.tensor_kinds import is_dequantizable
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.errors import ExportError, GgufError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.gguf_models import GGUF_MODELS, build_source, write_model
from tests.export.source_models import load_model
from tests.export.sources.gguf.gguf_checks import check
from tests.gguf_files import raw_gguf, small_vocabulary, text_bytes, write_gguf, write_small

F32, HUGE = 0, 1 << 60
UINT32, TEXT, ARRAY = 4, 8, 9


def uint32(value: int) -> bytes:
    return struct.pack("<I", value)


def array(kind: int, length: int, content: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + content


def test_values_and_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    values = {"a.text": "Zürich", "a.size": 7, "a.share": 0.5, "a.flag": True, "a.texts": ["x", ""], "a.sizes": [1, -2]}
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    file = GgufFile.open(write_gguf(tmp_path / "file", "llama", values, {"w": weights, "v": weights[0]}))
    assert file.metadata == {"general.architecture": "llama", **values}
    np.testing.assert_array_equal(file.values("w"), weights)
    np.testing.assert_array_equal(file.values("v"), weights[0])
    assert file.weight_types() == ("F32",)


def signed_weights(rows: Array) -> Array:
    """Q1_0, which the library does not know: llama.cpp's loop."""
    weights = []
    for block in rows.reshape(-1, 18):
        (scale,) = struct.unpack("<e", block[:2].tobytes())
        weights += [scale if block[2 + i // 8] >> i % 8 & 1 else -scale for i in range(128)]
    return np.array(weights, np.float32)


def test_a_type_that_the_library_does_not_list_has_llama_cpp_s_values(tmp_path: Path) -> None:
    """Q2_0: its loop, `dequantize_row_q2_0`. A fork has blocks of 128 weights under the same number."""
    data = np.random.default_rng(0).integers(0, 60, 30 * 18, dtype=np.uint8)
    path = tmp_path / "file"
    path.write_bytes(raw_gguf(tensors=[("w", (128, 15), 42, 0)], data=data.tobytes()))
    expected = []
    for block in data.reshape(-1, 18):
        (scale,) = struct.unpack("<e", block[:2].tobytes())
        expected += [(int(block[2 + i // 4] >> i % 4 * 2 & 3) - 1) * scale for i in range(64)]
    file = GgufFile.open(path)
    np.testing.assert_array_equal(file.values("w"), np.array(expected, np.float32).reshape(15, 128))
    assert file.weight_types() == ("Q2_0",)
    path.write_bytes(raw_gguf(tensors=[("w", (128, 15), 42, 0)], data=bytes(15 * 34)))
    with pytest.raises(GgufError, match="ends 30 bytes behind its end"):
        GgufFile.open(path)


def test_all_types_that_hold_weights_are_read() -> None:
    """The others are what activations are rounded to, integers, and fp64, which no converter writes weights in."""
    unread = [kind.name for kind in gguf.GGMLQuantizationType if not is_dequantizable(kind)]
    assert unread == ["Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"]


@pytest.mark.parametrize("kind", [kind for kind in gguf.GGMLQuantizationType if is_dequantizable(kind)])
def test_types_have_the_library_s_values(
    kind: gguf.GGMLQuantizationType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read a few rows at a time, too."""
    block_size, type_size = gguf.GGML_QUANT_SIZES[kind]
    shape = (5, 3, 2 * block_size)
    num_bytes = 30 * type_size
    # Small bytes, so that no scale among them is infinite.
    data = np.random.default_rng(0).integers(0, 60, num_bytes, dtype=np.uint8)
    path = tmp_path / "file"
    path.write_bytes(raw_gguf(tensors=[("w", shape[::-1], kind, 0)], data=data.tobytes()))
    monkeypatch.setattr(gguf_file, "_CHUNK_BYTES", 5 * type_size)
    rows = data.reshape(15, -1)
    expected = (signed_weights(rows) if kind.name == "Q1_0" else gguf.dequantize(rows, kind)).reshape(shape)
    np.testing.assert_array_equal(GgufFile.open(path).values("w"), expected)


ATTACKS = {
    "no GGUF file": [b"GGU", b"PRECIOUS" * 9],
    "is empty: fetch it again": [b""],
    "a format that GGUF replaced": [struct.pack("<II", 0x67676A74, 3) + bytes(64), b"lmgg" + bytes(64)],
    "is a web page": [b"<!DOCTYPE html><html>", b"<html><head>"],
    "version 1,.*converted since August 2023": [raw_gguf(version=1)],
    "version 4.*update reader-edge": [raw_gguf(version=4)],
    "big-endian machines.*gguf-convert-endian FILE little": [raw_gguf(version=3 << 24), raw_gguf(version=2 << 24)],
    "counts": [raw_gguf(counts=(HUGE, 0)), raw_gguf(counts=(0, HUGE))],
    r"does not end in it\): fetch it again\.$": [
        raw_gguf(counts=(0, 1)),
        raw_gguf(counts=(9, 0)),
        raw_gguf([("a", TEXT, struct.pack("<Q", 1 << 20))]),
        raw_gguf([("a", ARRAY, array(UINT32, 1 << 20))]),
        raw_gguf([("a", ARRAY, array(TEXT, 1 << 20))]),
    ],
    "'a name' is a text of": [raw_gguf([("a" * (1 << 17), UINT32, uint32(1))])],
    "a text of": [raw_gguf([("a", TEXT, struct.pack("<Q", HUGE))]), raw_gguf()[:16] + struct.pack("<QQ", 1, HUGE)],
    "an array of": [raw_gguf([("a", ARRAY, array(UINT32, HUGE))]), raw_gguf([("a", ARRAY, array(TEXT, HUGE))])],
    "value type 9": [raw_gguf([("a", ARRAY, array(ARRAY, 1, array(ARRAY, 1)))])],
    "value type 13": [raw_gguf([("a", 13, b"")]), raw_gguf([("a", ARRAY, array(13, 1))])],
    "not UTF-8": [raw_gguf([(b"\xff", UINT32, uint32(1))]), raw_gguf([("a", TEXT, text_bytes(b"\xff"))])],
    "comes twice": [
        raw_gguf([("a", UINT32, uint32(1))] * 2),
        raw_gguf(tensors=[("w", [1], F32, 0), ("w", [1], F32, 32)], data=bytes(64)),
    ],
    "alignment": [
        *(raw_gguf([("general.alignment", UINT32, uint32(value))]) for value in (0, 1, 24, 1 << 31)),
        raw_gguf([("general.alignment", TEXT, text_bytes("32"))]),
    ],
    "dimensions": [raw_gguf(tensors=[("w", [1] * num, F32, 0)], data=bytes(64)) for num in (0, 5)],
    "the shape": [raw_gguf(tensors=[("w", [4, size], F32, 0)], data=bytes(64)) for size in (0, 1 << 63)],
    "the type 99, .*does not know.*weights of other types": [raw_gguf(tensors=[("w", [4], 99, 0)], data=bytes(64))],
    "rows of 33": [raw_gguf(tensors=[("w", [33], 2, 0)], data=bytes(64))],
    "at offset 8": [raw_gguf(tensors=[("w", [4], F32, 8)], data=bytes(64))],
    "bytes behind its end": [
        raw_gguf(tensors=[("w", [4], F32, 64)], data=bytes(64)),
        raw_gguf(tensors=[("w", [4], F32, HUGE)], data=bytes(64)),
        raw_gguf(tensors=[("w", [1 << 39, 1 << 39], F32, 0)], data=bytes(64)),
    ],
    "lie upon each other": [raw_gguf(tensors=[("v", [16], F32, 0), ("w", [4], F32, 32)], data=bytes(64))],
}


@pytest.mark.parametrize(
    ("words", "number"), [(words, number) for words, files in ATTACKS.items() for number in range(len(files))]
)
def test_what_cannot_be_is_one_sentence(words: str, number: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(ATTACKS[words][number])
    with pytest.raises(GgufError, match=words) as caught:
        GgufFile.open(tmp_path / "file")
    assert str(caught.value).count("\n") == 0
    assert str(tmp_path / "file") in str(caught.value)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file", small_vocabulary())
    content = path.read_bytes()
    GgufFile.open(path)
    for length in np.linspace(0, len(content) - 1, 60, dtype=int):
        path.write_bytes(content[:length])
        with pytest.raises(GgufError):
            GgufFile.open(path)


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "file", "llama", {}, {"w": np.ones((8, 8), np.float32)})
    file = GgufFile.open(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(GgufError, match="became shorter"):
        file.values("w")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
def test_a_pipe_in_a_files_place_is_not_waited_for(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "file", "llama", {}, {"w": np.ones((8, 8), np.float32)})
    file = GgufFile.open(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="seek"):
        file.values("w")


def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """Else a package would hold the weights of one model and the fingerprint of another."""
    path = write_small(tmp_path / "file", small_vocabulary())
    source = GgufSource.of(GgufFile.open(path), None)
    source.fingerprint()
    path.write_bytes(path.read_bytes()[:-8] + b"\1" * 8)
    os.utime(path, ns=(0, 0))
    for read in (source.fingerprint, lambda: load_model(source)):
        with pytest.raises(GgufError, match="changed while it was read"):
            read()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    weights = np.ones((8, 8), np.float32)
    weights[3, 3] = value
    file = GgufFile.open(write_gguf(tmp_path / "file", "llama", {}, {"w": weights}))
    with pytest.raises(GgufError, match="'w' that are not finite"):
        file.values("w")


@pytest.mark.parametrize("model_type", ["llama", "arcee"])
def test_factors_of_frequencies_are_kept(model_type: str, tmp_path: Path) -> None:
    """As llama.cpp stores the scaling of Llama 3.1."""
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    stretched = {"head_dim": 16, "rope_scaling": {"rope_type": "llama3", **scaling}, "rope_theta": 500.0}
    model = build_source(model_type, tmp_path / "source", **stretched)
    plain = 500.0 ** (-torch.arange(0, 16, 2) / 16)
    factors = (plain / model.get_buffer("model.rotary_emb.inv_freq")).numpy()
    assert factors.min() == 1
    assert factors.max() > 7
    tensors = {"rope_freqs.weight": factors}
    check(write_model(model, tmp_path, tensors=tensors), model)


_LONGROPE = {"short_factor": 1.0, "long_factor": 2.0}  # and their least values


@pytest.mark.parametrize(("model_type", "num_pairs"), [("phi3", 4), ("phimoe", 8)])
def test_longrope_is_kept_up_to_where_it_switches(model_type: str, num_pairs: int, tmp_path: Path) -> None:
    """A file of Phi-MoE has the factor of other models, and no trace of what the model has in its place."""
    factors = {name: [least + i / 8 for i in range(num_pairs)] for name, least in _LONGROPE.items()}
    own = dict.fromkeys(("short_mscale", "long_mscale"), 1.243163121016122) if model_type == "phimoe" else {}
    switch = {"original_max_position_embeddings": 64}
    changes = {"rope_scaling": {"type": "longrope", **factors, **own, **switch}, **switch}
    model = build_source(model_type, tmp_path / "source", **changes)
    scale: float = model.model.rotary_emb.attention_scaling
    assert scale > 1
    path = write_model(
        model,
        tmp_path,
        values={f"{model_type}.rope.scaling.attn_factor": scale},
        tensors={
            f"rope_factors_{name}.weight": np.array(factors[f"{name}_factor"], "f4") for name in ("long", "short")
        },
    )
    check(path, model, max_context=64)
    with pytest.raises(ExportError, match="--max-context 64"):
        find_source(path, None)


def test_fused_queries_keys_and_values_are_taken_apart(tmp_path: Path) -> None:
    model = build_source("qwen2", tmp_path / "source")
    path = write_model(model, tmp_path)
    file = find_source(path, None).file  # type: ignore[attr-defined]
    weights = {name: file.values(name) for name in file.tensors}
    for layer in range(2):
        for kind in ("weight", "bias"):
            parts = [weights.pop(f"blk.{layer}.attn_{part}.{kind}") for part in "qkv"]
            weights[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate(parts)
    check(write_gguf(tmp_path / "fused.gguf", "qwen2", file.metadata, weights), model)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"])
def test_rounded_weights_have_the_values_that_the_library_gives_them(kind: str, tmp_path: Path) -> None:
    """Gemma 2 has all of it: norms, tied embeddings, windows, soft caps; llama.cpp keeps vectors in fp32."""
    stored = gguf.GGMLQuantizationType[kind]
    model = build_source("gemma2", tmp_path / "source")
    path = write_model(model, tmp_path, stored)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                rounded = gguf.dequantize(gguf.quantize(parameter.numpy(), stored), stored)
                parameter.copy_(torch.from_numpy(rounded))
    source = find_source(path, None)
    assert source.weight_types == (kind, "F32")
    check(path, model)


def test_gate_and_up_of_experts_may_be_one_tensor(tmp_path: Path) -> None:
    """As llama.cpp's converter writes them where an option says so."""
    model = build_source("qwen3_5_moe_text", tmp_path / "source")
    path = write_model(model, tmp_path)
    file = find_source(path, None).file  # type: ignore[attr-defined]
    weights = {name: file.values(name) for name in file.tensors}
    for layer in range(2):
        parts = [weights.pop(f"blk.{layer}.ffn_{part}_exps.weight") for part in ("gate", "up")]
        weights[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
    check(write_gguf(tmp_path / "fused.gguf", "qwen35moe", file.metadata, weights), model)


@pytest.mark.parametrize(
    ("model_type", "ending"),
    [("qwen3_5_moe_text", "ffn_gate_inp_shexp.weight"), ("granitemoehybrid", "ssm_norm.weight")],
)
def test_axes_of_one_may_be_left_out(model_type: str, ending: str, tmp_path: Path) -> None:
    """As llama.cpp leaves them out when it rewrites a file."""
    model = build_source(model_type, tmp_path / "source")
    file = find_source(write_model(model, tmp_path), None).file  # type: ignore[attr-defined]
    weights = {name: file.values(name) for name in file.tensors}
    short = {name: weight[0] for name, weight in weights.items() if name.endswith(ending)}
    assert {weight.ndim for weight in short.values()} == {1}
    check(write_gguf(tmp_path / "short.gguf", GGUF_MODELS[model_type][0], file.metadata, weights | short), model)


def test_scales_that_no_number_has_are_refused(tmp_path: Path) -> None:
    """In whatever form their weights are read."""
    model = build_source("gpt_oss", tmp_path / "source")
    path = write_model(model, tmp_path, gguf.GGMLQuantizationType.MXFP4)
    place = find_source(path, None).file.tensors["blk.1.ffn_down_exps.weight"].offset  # type: ignore[attr-defined]
    spoilt = bytearray(path.read_bytes())
    spoilt[place : place + 2] = b"\xff\x77"
    path.write_bytes(spoilt)
    weights = find_source(path, None).open_model().weights
    for read in (weights.read_expert, weights.expert_blocks):
        with pytest.raises(GgufError, match=r"'blk.1.ffn_down_exps.weight' that are not finite"):
            read("model.layers.1.mlp.experts.down_proj", 0)


def test_a_package_from_a_file_is_checked_and_says_what_it_is_from(tmp_path: Path) -> None:
    model = build_source("llama", tmp_path / "source")
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    path = write_model(
        model,
        tmp_path / "tiny.gguf",
        gguf.GGMLQuantizationType.Q8_0,
        values={"tokenizer.chat_template": template, "tokenizer.ggml.eot_token_id": 0},
    )
    report = export_model(path, tmp_path / "out", ExportOptions(precision="fp32"))
    assert report.weight_types == ("Q8_0", "F32")
    own, written = (Tokenizer.from_file(str(tmp_path / place / "tokenizer.json")) for place in ("source", "out"))
    assert report.ends == ("<|eos|>", own.id_to_token(0))
    package = ModelPackage.open(tmp_path / "out")
    package.check_files()
    manifest = package.manifest
    assert (manifest.source_name, manifest.architecture) == ("tiny.gguf", "llama")
    assert manifest.source_fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (manifest.eos_token_ids, manifest.bos_token_id) == ((1, 0), 0)
    assert manifest.checks["tree_logit_error"] < 5e-6
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == template
    text = "the cat sat on the mat, <|eos|> 123 Zürich"
    assert written.encode(text).ids == own.encode(text).ids

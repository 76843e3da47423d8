"""What a GGUF file says of its model is mapped exactly, or refused by name."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reader_edge_export.sources import blank_model
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.errors import ExportError, GgufError, UnsupportedArchitectureError
from reader_edge_runtime.machine.process_memory import free_bytes
from reader_edge_runtime.untrusted.gguf_header import Value
from tests.export.source_models import load_model
from tests.gguf_files import SMALL, small_tensors, small_vocabulary, write_gguf, write_small

VOCABULARY = small_vocabulary()
ODD_HEAD = ("attention.key_length", "attention.value_length", "rope.dimension_count")
YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
MANY = [f"<{number}>" for number in range(400)]
VOCAB_SIZE = len(VOCABULARY["tokenizer.ggml.tokens"])


def test_the_small_model_is_a_source(tmp_path: Path) -> None:
    """Else the refusals below would prove nothing."""
    source = find_source(write_small(tmp_path / "small.gguf", VOCABULARY), None)
    assert (source.short_name, source.architecture, source.max_context) == ("small.gguf", "llama", 64)
    assert load_model(source).num_parameters() == sum(weight.size for weight in small_tensors(VOCAB_SIZE).values())
    assert find_source(tmp_path / "small.gguf", 32).max_context == 32


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"general.architecture": None}, "no general.architecture"),
        ({"llama.block_count": None}, "no llama.block_count"),
        ({"llama.block_count": "two"}, "llama.block_count as 'two'"),
        ({"llama.block_count": [1, 1]}, r"llama.block_count as \[1, 1\]"),
        ({"llama.block_count": 0}, "llama.block_count as 0"),
        ({"llama.block_count": 1 << 20}, "counts 1048576 layers"),
        ({"llama.context_length": 1 << 31}, "llama.context_length as 2147483648"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon as nan"),
        ({"llama.attention.head_count": 99}, "key_length as 0"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "epsilon as 0.0"),
        ({"llama.attention.head_count_kv": 3}, "2 attention heads for 3 of keys"),
        ({"llama.attention.head_count_kv": 4}, "2 attention heads for 4 of keys"),
        ({"llama.rope.freq_base": -1.0}, "freq_base as -1.0"),
        (dict.fromkeys((f"llama.{key}" for key in ODD_HEAD), 3), "rotates 3 of 3 values"),
        ({"general.type": "x" * (1 << 21)}, "general.type as 'xxx"),
        ({"tokenizer.chat_template": 5}, "chat_template as 5"),
        ({"tokenizer.chat_template": "x" * (1 << 21)}, "chat_template as 'xxx"),
        ({"llama.rope.dimension_count": 2}, "only a part of each head"),
        ({"llama.rope.scaling.factor": -2.0}, "rope.scaling.factor as -2.0"),
        ({**YARN, "llama.rope.scaling.yarn_beta_fast": -1.0}, "yarn_beta_fast as -1.0"),
        ({**YARN, "llama.rope.scaling.yarn_attn_factor": 0.0}, "yarn_attn_factor as 0.0"),
        ({**YARN, "llama.rope.scaling.original_context_length": 1}, "from a context of one token"),
        ({"llama.context_length": 8}, "a context of 8 tokens: 16 are the least"),
        ({"llama.rope.dimension_count": 5}, "rotates 5 of 4 values"),
        ({"llama.attention.clamp_kqv": 8.0}, "'llama.attention.clamp_kqv' to 8.0"),
        ({"general.type": "adapter"}, "'adapter'"),
        ({"tokenizer.ggml.tokens": MANY, "tokenizer.ggml.token_type": None}, "400 tokens, but embeddings of 259"),
        ({"llama.vocab_size": 7}, "vocab_size as 7, and 259 embeddings"),
        ({"llama.attention.head_count_kv": [1, 2]}, r"head_count_kv as \[1, 2\]"),
        ({"llama.ssm.v_head_reordered": False}, "'llama.ssm.v_head_reordered' to False"),
        ({"tokenizer.ggml.add_sep_token": True}, "'tokenizer.ggml.add_sep_token' to True"),
        ({"tokenizer.ggml.precompiled_charsmap": "x"}, "'tokenizer.ggml.precompiled_charsmap' to 'x'"),
    ],
)
def test_what_cannot_be_mapped_is_refused_by_name(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    if "general.architecture" in values:
        path = write_gguf(tmp_path / "file", "llama", {}, small_tensors(VOCAB_SIZE))
        path.write_bytes(path.read_bytes().replace(b"general.architecture", b"general.architectura"))
    else:
        path = write_small(tmp_path / "file", VOCABULARY, values)
    with pytest.raises(GgufError, match=words) as caught:
        find_source(path, None)
    assert "\n" not in str(caught.value)
    assert "config.json" not in str(caught.value)  # of which there is none


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"llama.attention.causal": False}, "later tokens"),
        ({"llama.pooling_type": 1}, r"makes embeddings of texts \(pooling_type 1\)"),
        ({"llama.pooling_type": 4}, r"makes embeddings of texts \(pooling_type 4\)"),
        ({"llama.attention.value_length": 8}, "differ in size"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope'"),
        ({"llama.rope.scaling.attn_factor": 1.5}, "scales attention by 1.5"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.yarn_ext_factor": 0.5}, "mixes YaRN"),
    ],
)
def test_what_cannot_be_exported_is_refused(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=words):
        find_source(write_small(tmp_path / "file", VOCABULARY, values), None)


def test_experts_in_a_family_without_any_are_refused(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file", VOCABULARY, {"llama.expert_count": 8, "llama.expert_used_count": 2})
    path.write_bytes(path.read_bytes().replace(b"llama", b"qwen2"))
    with pytest.raises(UnsupportedArchitectureError, match="a mixture of experts of the architecture 'qwen2', which"):
        find_source(path, None)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"altup.active_idx": 4}, "altup.active_idx as 4 of 4 inputs, of 64 at most"),
        ({"altup.num_inputs": 1 << 20}, "altup.active_idx as 0 of 1048576 inputs, of 64 at most"),
        ({"activation_sparsity_scale": [9.0]}, r"activation_sparsity_scale as \[9.0\]"),
        ({"feed_forward_length": [1.5]}, r"feed_forward_length as \[1.5\]"),
        ({"feed_forward_length": ["a"]}, r"feed_forward_length as \['a'\]"),
    ],
)
def test_what_gemma_3n_computes_nothing_by_is_refused(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    sizes = {key.removeprefix("llama."): value for key, value in SMALL.items()}
    own = {**sizes, "attention.sliding_window": 4, "attention.shared_kv_layers": 0, **values}
    all_values = {f"gemma3n.{key}": value for key, value in own.items()} | VOCABULARY
    path = write_gguf(tmp_path / "file", "gemma3n", all_values, small_tensors(VOCAB_SIZE))
    with pytest.raises(GgufError, match=words):
        find_source(path, None)


def test_more_experts_than_any_model_has_are_refused_before_any_is_made(tmp_path: Path) -> None:
    experts = {"llama.expert_count": 8192, "llama.expert_used_count": 2, "llama.block_count": 17}
    tensors = {f"blk.{number}.x": np.zeros(1, np.float32) for number in range(17)}
    path = write_small(tmp_path / "file", VOCABULARY, experts, tensors)
    with pytest.raises(GgufError, match="8192 experts in each of 17 layers"):
        find_source(path, None)


ALIKE = {  # keys that mean the same, and a value of both
    ("attention.key_length", "attention.head_dim"): 4,
    ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"): 1e-5,
    ("rope.scaling.factor", "rope.scale_linear"): 2.0,
    ("rope.scaling.yarn_ext_factor", "rope.scaling.extrapolation_factor"): 1.0,
    ("rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast"): 64.0,
    ("rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow"): 2.0,
}


@pytest.mark.parametrize("keys", ALIKE)
def test_keys_of_ollama_that_mean_the_same_may_not_contradict(keys: tuple[str, str], tmp_path: Path) -> None:
    known, other = (f"llama.{key}" for key in keys)
    value = ALIKE[keys]
    yarn = {"llama.rope.freq_base": 1e4, "llama.rope.scaling.type": "yarn" if "yarn" in known else "linear"}
    base = {**yarn, known: None}
    with_known = find_source(write_small(tmp_path / "known", VOCABULARY, {**yarn, known: value}), None)
    with_other = find_source(write_small(tmp_path / "other", VOCABULARY, {**base, other: value}), None)
    with_both = find_source(write_small(tmp_path / "both", VOCABULARY, {**yarn, known: value, other: value}), None)
    assert with_known.config == with_other.config == with_both.config
    path = write_small(tmp_path / "contradiction", VOCABULARY, {**yarn, known: value, other: 2 * value})
    with pytest.raises(
        GgufError, match=f"gives {known} as .*, but {other} as .*, which mean the same: give another file of this model"
    ):
        find_source(path, None)


def test_an_empty_list_changes_nothing_and_is_no_number() -> None:
    """As Ollama's converter writes mrope_section; gguf's own writer leaves empty lists out."""
    metadata: dict[str, Value] = {"llama.rope.mrope_section": [], "llama.attention.head_count_kv": []}
    values = Metadata(GgufFile(Path("file"), {}, metadata, {}), "llama")
    with pytest.raises(GgufError, match=r"head_count_kv as \[\], which cannot be"):
        values.size("attention.head_count_kv")
    values.check_all_read((), {"rope.mrope_section": []})
    with pytest.raises(GgufError, match="mrope_section' to"):
        values.check_all_read((), {"rope.mrope_section": 0})


def test_values_that_change_nothing_are_taken(tmp_path: Path) -> None:
    inert: dict[str, Any] = {"attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0, "pooling_type": 0}
    inert |= {"rope.mrope_section": [1, 1], "mrope_sections": [1, 1], "rope.dimension_sections": [1, 1, 0, 0]}
    inert |= {"rope.mrope_interleaved": True, "image_token_id": 7, "expert_shared_count": 0}
    inert |= {"source_quantization": "hf_fp8", "source_fp8_tensors": ["blk.0.ffn_up.weight"]}
    inert |= {"rope.scaling.type": "", "rope.scaling.factor": 0.0, "rope.scaling.original_context_length": 0}
    inert |= {"rope.scaling.yarn_beta_fast": 0.0, "rope.scaling.yarn_beta_slow": 0.0}
    values = {f"llama.{key}": value for key, value in inert.items()}
    same = {"llama.vocab_size": VOCAB_SIZE, "llama.attention.head_count_kv": [1], "general.parameter_count": 3}
    plain = find_source(write_small(tmp_path / "plain", VOCABULARY), None)
    assert find_source(write_small(tmp_path / "file", VOCABULARY, values | same), None).config == plain.config


@pytest.mark.parametrize("name", ["v.patch_embd.weight", "mm.input_projection.weight", "a.conv1d.0.weight"])
def test_a_file_with_a_model_of_images_is_refused_for_its_tensors(name: str, tmp_path: Path) -> None:
    keys = {"llama.vision.block_count": 27, "llama.mm.tokens_per_image": 256, "llama.audio.block_count": 2}
    plain = find_source(write_small(tmp_path / "plain", VOCABULARY), None)
    assert find_source(write_small(tmp_path / "keys", VOCABULARY, keys), None).config == plain.config
    path = write_small(tmp_path / "file", VOCABULARY, keys, {name: np.zeros((3, 3), np.float32)})
    with pytest.raises(UnsupportedArchitectureError, match="a model of images too, in one file, as Ollama keeps them"):
        find_source(path, None)


@pytest.mark.parametrize(
    ("architecture", "values", "words"),
    [
        ("clip", {"clip.has_vision_encoder": True}, r"turns images into tokens \(mmproj\).*give the file beside it"),
        ("llama", {"general.type": "mmproj"}, "holds no model but 'mmproj'"),
        ("llama", {"general.type": "imatrix"}, "holds no model but 'imatrix'"),
    ],
)
def test_files_of_images_are_refused(architecture: str, values: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "file", architecture, {**VOCABULARY, **values}, {})
    with pytest.raises(ExportError, match=f"^[^\n]*{words}[^\n]*$"):
        find_source(path, None)


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "file", "mamba", VOCABULARY, {})
    with pytest.raises(UnsupportedArchitectureError, match=r"'mamba', .* from GGUF; .* llama, .*qwen2"):
        find_source(path, None)


def test_types_without_known_values_are_refused(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file", VOCABULARY, tensors={"blk.0.attn_norm.weight": np.zeros(8, np.int32)})
    with pytest.raises(GgufError, match="type I32"):
        find_source(path, None)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"token_embd.weight": None}, "lacks the tensor token_embd.weight"),
        ({"blk.0.ffn_up.weight": None}, "0 tensors instead of one for blk.0.ffn_up.weight"),
        ({"blk.0.ffn_up.weight": np.zeros((13, 8), np.float32)}, r"shape \(13, 8\) instead of \(12, 8\)"),
        ({"blk.1.ffn_up.weight": np.zeros((12, 8), np.float32)}, "'blk.1.ffn_up.weight', for which"),
        ({"blk.0.attn_sinks.weight": np.zeros(2, np.float32)}, "'blk.0.attn_sinks.weight', for which"),
        ({"blk.0.attn_qkv.weight": np.zeros((16, 8), np.float32)}, "2 tensors instead of one for blk.0.attn_q.weight"),
        ({"blk.0.attn_q.bias": np.zeros(8, np.float32)}, "0 tensors instead of one for blk.0.attn_k.bias"),
        ({"rope_freqs.weight": np.zeros(2, np.float32)}, "rope_freqs.weight that are not positive"),
        ({"rope_freqs.weight": np.ones(3, np.float32)}, "3 factors for 2 frequencies"),
        ({"output_norm.weight": np.full(8, np.nan, np.float32)}, "'output_norm.weight' that are not finite"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tensors: dict[str, Array | None], words: str, tmp_path: Path) -> None:
    path = write_small(tmp_path / "file", VOCABULARY, tensors=tensors)
    with pytest.raises(GgufError, match=words):
        load_model(find_source(path, None))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("embedding_length", 1 << 27),
        ("feed_forward_length", 1 << 28),
        ("attention.key_length", 1 << 20),
        ("attention.head_count_kv", 1 << 20),
    ],
)
def test_sizes_that_no_tensor_has_are_never_allocated(key: str, value: int, tmp_path: Path) -> None:
    values = {f"llama.{key}": value, "llama.rope.dimension_count": None}
    if key == "attention.key_length":
        values["llama.attention.value_length"] = value
    with pytest.raises(GgufError, match=r"instead of \(|cannot be built|heads for|tables and norms"):
        load_model(find_source(write_small(tmp_path / "file", VOCABULARY, values), None))


def test_learned_positions_are_bounded_before_their_tables(tmp_path: Path) -> None:
    own = {key.replace("llama.", "gpt2."): value for key, value in SMALL.items()}
    values = {**own, **VOCABULARY, "gpt2.context_length": 1 << 20, "gpt2.attention.layer_norm_epsilon": 1e-5}
    with pytest.raises(GgufError, match="1048576 learned positions"):
        find_source(write_gguf(tmp_path / "file", "gpt2", values, small_tensors(VOCAB_SIZE)), None)


@pytest.mark.parametrize(("num_layers", "scalar"), [(1, 4), (46, 8)])
def test_gemma_2_scales_its_queries_as_llama_cpp_knows_it(num_layers: int, scalar: int, tmp_path: Path) -> None:
    """By the head size, in the 27B of 46 layers by the hidden size over the number of heads."""
    own = {key.replace("llama.", "gemma2."): value for key, value in SMALL.items()}
    sizes = {"block_count": num_layers, "embedding_length": 16, "attention.key_length": 4, "attention.value_length": 4}
    values = {**own, **VOCABULARY, **{f"gemma2.{key}": value for key, value in sizes.items()}}
    names = {f"blk.{layer}.x": np.zeros(1, np.float32) for layer in range(num_layers)}
    path = write_gguf(tmp_path / "file", "gemma2", values, {**small_tensors(VOCAB_SIZE), **names})
    config = find_source(path, None).config
    assert config["query_pre_attn_scalar"] == scalar
    assert config["layer_types"][:2] == ["sliding_attention", "full_attention"][:num_layers]
    assert (config["sliding_window"], config["attn_logit_softcapping"]) == (4096, 50)


def test_a_longrope_that_stretches_one_position_is_refused(tmp_path: Path) -> None:
    """Its scale divides by the logarithm of the context that is stretched."""
    values = {key.replace("llama", "phi3"): value for key, value in SMALL.items()}
    factors = {f"rope_factors_{kind}.weight": np.ones(2, np.float32) for kind in ("long", "short")}
    original = {"phi3.rope.scaling.original_context_length": 1}
    tensors = {**small_tensors(VOCAB_SIZE), **factors}
    path = write_gguf(tmp_path / "file", "phi3", {**values, **VOCABULARY, **original}, tensors)
    with pytest.raises(GgufError, match="from a context of one token"):
        find_source(path, None)


def test_a_model_without_room_in_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find_source(write_small(tmp_path / "file", VOCABULARY), None)
    num_bytes = 2 * 4 * max(weight.size for weight in small_tensors(VOCAB_SIZE).values())
    monkeypatch.setattr(blank_model, "free_bytes", lambda: num_bytes - 1)
    with pytest.raises(GgufError, match="GiB of memory in fp32"):
        source.open_model()
    monkeypatch.setattr(blank_model, "free_bytes", lambda: num_bytes)
    source.open_model()


@pytest.mark.skipif(sys.platform != "linux", reason="Where the system tells")
def test_free_memory_is_some_and_not_more_than_any_machine_has() -> None:
    assert 1 << 20 < (free_bytes() or 0) < 1 << 50

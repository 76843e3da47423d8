"""bitsandbytes' and MLX's folders are widened bit for bit as these libraries do, or refused.

golden/blocks.safetensors was written and widened by bitsandbytes 0.50.2 and mlx 0.32.4 on a CPU, in the types that
their files name. Folders have the keys and types that transformers 5.24.0 saves with `load_in_4bit` and `load_in_8bit`,
and mlx_lm.convert with `-q`, by their source code; none was fetched. mlx-lm 0.32.2 wrote tiny models of what has states
in 4 and 8 bits and as they are: read here, they give its logits.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.quantized.formats import Quantization, quantization_of
from reader_edge_export.sources.quantized.packed_tensors import packing_of
from reader_edge_export.sources.quantized.packing import Packing
from reader_edge_runtime.arrays import Array, Int64Array
from reader_edge_runtime.errors import ConfigError, ExportError, UnsupportedArchitectureError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.conftest import TinyModel
from tests.export.source_models import load_model
from tests.export.sources.quantized.test_float_formats import WRITERS as FLOAT_WRITERS
from tests.export.sources.quantized.test_float_formats import (
    Writer,
    beside_images,
    quantize,
    refusals_of_changes,
)
from tests.export.sources.quantized.test_quantized_formats import Tensors, widened
from tests.export.sources.source_folders import WRITERS as INTEGER_WRITERS
from tests.export.sources.source_folders import copy_folder, quantize_folder
from tests.tiny_models import build_tiny_model, change_config

GOLDEN = load_file(Path(__file__).parent / "golden" / "blocks.safetensors")
NAMES = sorted({key.partition(".")[0] for key in GOLDEN})
NF4 = np.array(  # QLoRA (arXiv:2305.14314), appendix E
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)


def bitsandbytes(bits: int) -> dict[str, Any]:
    """As transformers writes it."""
    return {
        **{"_load_in_4bit": bits == 4, "_load_in_8bit": bits == 8, "bnb_4bit_compute_dtype": "bfloat16"},
        **{"bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        **{"llm_int8_skip_modules": None, "llm_int8_threshold": 6.0, "load_in_4bit": bits == 4},
        **{"load_in_8bit": bits == 8, "quant_method": "bitsandbytes"},
    }


def golden(name: str) -> tuple[Packing, Tensors, torch.Tensor]:
    held = {key.partition(".")[2]: tensor for key, tensor in GOLDEN.items() if key.partition(".")[0] == name}
    expected = held.pop("weight")
    held["weight"] = held.pop("quantized")
    kind, *words = name.split("_")
    if kind == "bnb":
        config: dict[str, Any] = {"quantization_config": bitsandbytes(8 if words == ["int8"] else 4)}
    else:
        config = {"quantization": {"mode": words[0]}}
        if len(words) == 3:
            config = {"quantization": {"bits": int(words[0]), "group_size": int(words[1])}}
    quantization = quantization_of(config)
    assert quantization is not None
    return packing_of(quantization), held, expected


@pytest.mark.parametrize("name", NAMES)
def test_a_matrix_is_widened_bit_for_bit_as_its_library_does(name: str) -> None:
    packing, tensors, expected = golden(name)
    assert expected.unique().numel() > 12
    assert torch.equal(widened(packing, tensors), expected.float())


@pytest.mark.parametrize("size", [1, 40, 1 << 12])
def test_parts_of_a_matrix_are_widened_like_all_of_it(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("bitsandbytes", "mlx"):
        monkeypatch.setattr(f"reader_edge_export.sources.quantized.{module}.CHUNK_VALUES", size)
    for name in ("bnb_nf4_half", "bnb_nf4_nested", "mlx_3_64_float16"):
        packing, tensors, expected = golden(name)
        assert torch.equal(widened(packing, tensors), expected.float())


def _state(shape: Sequence[int], **changes: Any) -> torch.Tensor:
    fields = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(shape)} | changes
    return torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)


def _nf4(size: Sequence[int], rng: np.random.Generator) -> tuple[Tensors, Array]:
    codes = rng.integers(0, 16, size).astype(np.uint8)
    pairs = codes.reshape(-1, 2)
    scales = rng.uniform(0.05, 0.2, codes.size // 64).astype(np.float32)
    exact = NF4[codes].astype(np.float64) * np.repeat(scales, 64).reshape(size)
    parts = {
        "weight": torch.from_numpy(pairs[:, :1] << 4 | pairs[:, 1:]),
        "weight.absmax": torch.from_numpy(scales),
        "weight.quant_map": torch.tensor(NF4),
        "weight.quant_state.bitsandbytes__nf4": _state(size),
    }
    return parts, torch.from_numpy(exact).float().bfloat16().float().numpy()


def _int8(size: Sequence[int], rng: np.random.Generator) -> tuple[Tensors, Array]:
    codes = rng.integers(-127, 128, size).astype(np.int8)
    scales = rng.uniform(0.1, 0.3, size[0]).astype(np.float32)
    parts = {
        "weight": torch.from_numpy(codes),
        "SCB": torch.from_numpy(scales),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return parts, codes.astype(np.float32) * scales[:, None] * np.float32(7.874015718698502e-3)


def _mlx(bits: int, group: int, scale_type: torch.dtype = torch.float16) -> Any:
    def write(size: Sequence[int], rng: np.random.Generator) -> tuple[Tensors, Array]:
        codes: Int64Array = rng.integers(0, 2**bits, size)
        row_of_bits = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(*size[:-1], -1)
        words = np.packbits(row_of_bits, axis=-1, bitorder="little").view(np.uint32)
        number = (*size[:-1], size[-1] // group)
        scales, biases = (torch.from_numpy(rng.uniform(0.01, 0.02, number)).to(scale_type) for _ in range(2))
        wide = [each.repeat_interleave(group, -1) for each in (scales, -biases)]
        values = (torch.from_numpy(codes).to(scale_type) * wide[0]) + wide[1]
        return {"weight": torch.from_numpy(words), "scales": scales, "biases": -biases}, values.float().numpy()

    return write


MLX = {"group_size": 32, "bits": 4, "mode": "affine"}
WRITERS = {
    "nf4": Writer(bitsandbytes(4), _nf4, "bitsandbytes 4 bit", beside=()),
    "int8": Writer(bitsandbytes(8), _int8, "bitsandbytes 8 bit", beside=()),
    "mlx": Writer(MLX, _mlx(4, 32), "MLX 4 bit", beside=()),
    "mlx of six bits": Writer({"group_size": 32, "bits": 6}, _mlx(6, 32, torch.bfloat16), "MLX 6 bit", beside=()),
}


def _equal(source: Path, plain: Path) -> None:
    expected = dict(load_model(find_source(plain, None)).named_parameters())
    found = dict(load_model(find_source(source, None)).named_parameters())
    assert found.keys() == expected.keys()
    for parameter, values in found.items():
        assert torch.equal(expected[parameter], values), parameter


@pytest.fixture
def plain(source: Path, tmp_path: Path) -> Path:
    """A copy of the source."""
    return Path(shutil.copytree(source, tmp_path / "plain"))


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_is_the_model_of_its_widened_weights(name: str, source: Path, plain: Path) -> None:
    quantize(source, plain, WRITERS[name])
    _equal(source, plain)
    assert find_source(source, None).weight_types[0] == WRITERS[name].weight_type


def test_layers_and_embeddings_have_the_bits_that_mlx_says_of_each(source: Path, plain: Path) -> None:
    quantize(source, plain, WRITERS["mlx"])
    rng = np.random.default_rng(1)
    own = {
        "model.embed_tokens": ({"group_size": 64, "bits": 6}, _mlx(6, 64)),
        "model.layers.1.mlp.up_proj": ({"group_size": 32, "bits": 8}, _mlx(8, 32)),
    }
    weights, whole = (load_file(each / "model.safetensors") for each in (source, plain))
    for module, (_, write) in own.items():
        parts, values = write(whole[f"{module}.weight"].shape, rng)
        whole[f"{module}.weight"] = torch.from_numpy(values)
        weights |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    save_file(weights, source / "model.safetensors", {"format": "mlx"})
    save_file(whole, plain / "model.safetensors", {"format": "pt"})
    settings = MLX | {module: scheme for module, (scheme, _) in own.items()} | {"lm_head": False}
    change_config(source, quantization=settings, quantization_config=settings)
    _equal(source, plain)
    assert find_source(source, None).weight_types[:3] == ("MLX 4 bit", "MLX 6 bit", "MLX 8 bit")
    change_config(source, quantization=MLX, quantization_config=MLX)
    with pytest.raises(ExportError, match=r"has scales as the shape \(\d+, \d\), for 4 bits in 32s"):
        load_model(find_source(source, None))


def test_paths_of_an_mlx_config_are_looked_up() -> None:
    """As many as a config can have, for as many matrices: comparing each with each took minutes."""
    own = {f"language_model.model.layers.{number}.mlp.up_proj": {"mode": "mxfp4"} for number in range(30_000)}
    packing = packing_of(Quantization("mlx", {"group_size": 32, "bits": 4, **own}))
    found = [packing.is_in_mxfp4(f"model.layers.7.mlp.{name}_proj", {}) for name in ("up", "down") * 5000]
    assert found == [True, False] * 5000


@pytest.mark.parametrize("name", ["nf4", "int8", "mlx"])
def test_experts_of_their_own_are_read_too(name: str, tmp_path: Path) -> None:
    source = build_tiny_model("qwen3_moe", tmp_path / "source", moe_intermediate_size=64)
    plain = Path(shutil.copytree(source, tmp_path / "plain"))
    quantize(source, plain, WRITERS[name])
    _equal(source, plain)


@pytest.mark.parametrize("name", ["nf4", "mlx"])
def test_the_text_model_beside_one_of_images_is_read_too(name: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    text, plain = (Path(shutil.copytree(tiny_model("ministral3"), tmp_path / each)) for each in ("text", "plain"))
    quantize(text, plain, WRITERS[name])
    if name == "mlx":  # where the default is another, and paths are those of the whole model
        own = {
            f"language_model.{key[:-7]}": MLX for key in load_file(text / "model.safetensors") if key[-7:] == ".scales"
        }
        change_config(text, quantization_config={"group_size": 64, "bits": 8} | own)
    beside_images(text)
    _equal(text, plain)


@pytest.mark.parametrize("name", ["awq", "gptq4", "pack4"])
def test_experts_of_other_tools_are_read_too(name: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    source, plain = (Path(shutil.copytree(tiny_model("qwen3_moe"), tmp_path / each)) for each in ("source", "plain"))
    quantize_folder(source, plain, INTEGER_WRITERS[name])
    _equal(source, plain)


def _stacked(tensors: Tensors) -> None:
    """Experts as MLX has them."""
    for name in [name for name in tensors if ".experts.0." in name]:
        before, _, part = name.partition(".experts.0.")
        own = [key for key in tensors if key.startswith(f"{before}.experts.") and key.endswith(f".{part}")]
        own.sort(key=lambda key: int(key.removeprefix(f"{before}.experts.").partition(".")[0]))
        tensors[f"{before}.switch_mlp.{part}"] = torch.stack([tensors.pop(key) for key in own])


@pytest.mark.parametrize("is_quantised", [False, True])
def test_experts_are_stacked_as_mlx_does(is_quantised: bool, tmp_path: Path) -> None:
    own = build_tiny_model("qwen3_moe", tmp_path / "own", moe_intermediate_size=64)
    plain = Path(shutil.copytree(own, tmp_path / "plain"))
    if is_quantised:
        quantize(own, plain, WRITERS["mlx"])
    source = copy_folder(own, tmp_path / "source", _stacked)
    assert any(".switch_mlp." in name for name in load_file(source / "model.safetensors"))
    _equal(source, plain)


def test_stacked_experts_that_the_model_does_not_have_are_not_taken_apart(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    name = "model.layers.0.mlp.switch_mlp.up_proj.weight"
    many = {name: torch.zeros(1 << 16, 1, 1, dtype=torch.uint8)}
    source = copy_folder(tiny_model("qwen3_moe"), tmp_path / "source", lambda tensors: tensors.update(many))
    with pytest.raises(ExportError, match=name):
        find_source(source, None).open_model()


_MLX_NAMES = {
    "lfm2_moe": {".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."},
    "nemotron_h-experts": {".switch_mlp.up_proj.": ".switch_mlp.fc1.", ".switch_mlp.down_proj.": ".switch_mlp.fc2."},
}
_NOPE = 8  # values of a key that its latent makes
_WITH_ONE = ("input_layernorm.weight", "post_attention_layernorm.weight", "q_norm.weight", "k_norm.weight")


def _is_norm_with_one(family: str, name: str) -> bool:
    return family.startswith("qwen") and name.endswith((*_WITH_ONE, "model.norm.weight"))


def _as_mlx_writes(family: str, tensors: Tensors) -> None:
    """What `sanitize` of mlx-lm's model does."""
    _stacked(tensors)
    for name in list(tensors):
        values, theirs = tensors.pop(name), name
        for ours, other in _MLX_NAMES.get(family, {}).items():
            theirs = theirs.replace(ours, other)
        if name.endswith(("conv1d.weight", "conv.weight")):
            values = values.moveaxis(2, 1).contiguous()
        tensors[theirs] = values + 1 if _is_norm_with_one(family, name) else values
    for name in [name for name in tensors if name.endswith(".kv_b_proj.weight")]:
        before, heads = name.removesuffix("kv_b_proj.weight"), tensors.pop(name).unflatten(0, (4, -1))
        tensors[f"{before}embed_q.weight"] = heads[:, :_NOPE].mT.contiguous()
        tensors[f"{before}unembed_out.weight"] = heads[:, _NOPE:].contiguous()
    for name in [name for name in tensors if family == "granitemoehybrid" and ".shared_mlp." in name]:
        layer, values = name.partition(".shared_mlp.")[0], tensors.pop(name)
        parts = ("gate_proj", "up_proj") if "input_linear" in name else ("down_proj",)
        for part, rows in zip(parts, values.chunk(len(parts)), strict=True):
            tensors[f"{layer}.mlp.{part}.weight"] = rows.contiguous()


@pytest.mark.parametrize(
    ("family", "is_quantised"),
    [
        *((family, False) for family in ("qwen3_next", "qwen3_5_moe_text", "nemotron_h-experts", "lfm2_moe")),
        *((family, False) for family in ("granitemoehybrid", "glm4_moe_lite")),
        *((family, True) for family in ("qwen3_5_text", "nemotron_h", "lfm2")),
    ],
)
def test_what_mlx_changes_of_models_with_states_is_undone(
    family: str, is_quantised: bool, tiny_model: TinyModel, tmp_path: Path
) -> None:
    def rounded(tensors: Tensors) -> None:
        """Norms lose the digits that a one leaves no room for."""
        tensors.update({name: (t + 1) - 1 for name, t in tensors.items() if _is_norm_with_one(family, name)})

    own, plain = (copy_folder(tiny_model(family), tmp_path / name, rounded) for name in ("own", "plain"))
    if is_quantised:
        quantize(own, plain, WRITERS["mlx"])
    source = copy_folder(own, tmp_path / "source", lambda tensors: _as_mlx_writes(family, tensors))
    _equal(source, plain)


@pytest.mark.parametrize(
    ("family", "name"),
    [("lfm2_moe", ".feed_forward.w1.weight"), ("granitemoehybrid", ".shared_mlp.input_linear.weight")],
)
def test_a_matrix_by_mlx_name_and_by_its_own_is_refused(
    family: str, name: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    def twice(tensors: Tensors) -> None:
        own = {key: values.clone() for key, values in tensors.items() if key.endswith(name)}
        _as_mlx_writes(family, tensors)
        tensors.update(own)

    source = copy_folder(tiny_model(family), tmp_path / "source", twice)
    with pytest.raises(ExportError, match=r"gate_proj\.weight.*has no place"):
        find_source(source, None).open_model()


def test_falcon_h1_of_mlx_is_refused(tiny_model: TinyModel, tmp_path: Path) -> None:
    source = copy_folder(tiny_model("falcon_h1"), tmp_path / "source", lambda tensors: _as_mlx_writes("", tensors))
    with pytest.raises(UnsupportedArchitectureError, match="converted for MLX, which multiplies matrices by factors"):
        find_source(source, None)


@pytest.mark.long
def test_a_folder_exports_like_the_widened_one_with_its_quality(source: Path, plain: Path, tmp_path: Path) -> None:
    quantize(source, plain, WRITERS["nf4"])
    for folder in (source, plain):
        export_model(folder, tmp_path / f"{folder.name} out", ExportOptions("int8"))
    quantised, whole = (ModelPackage.open(tmp_path / f"{each.name} out").manifest for each in (source, plain))
    assert quantised.files == whole.files
    assert quantised.checks["mean_kl_nats"] == whole.checks["mean_kl_nats"]
    assert quantised.checks["source_weight_bits"] == 4
    with pytest.raises(ConfigError, match=r"'keep' is for GGUF files .*: use 'int8', 'int4' or another"):
        export_model(source, tmp_path / "kept", ExportOptions("keep"))


def _mxfp4(size: Sequence[int], rng: np.random.Generator) -> tuple[Tensors, Array]:
    parts, values = FLOAT_WRITERS["quark mxfp4"].write(size, rng)
    return {"weight": parts["weight"].view(torch.uint32), "scales": parts["weight_scale"]}, values


_MXFP4 = {name: FLOAT_WRITERS[name] for name in ("compressed-tensors mxfp4", "quark mxfp4")}
_MXFP4["mlx mxfp4"] = Writer({"group_size": 32, "bits": 4, "mode": "mxfp4"}, _mxfp4, "MLX 4 bit", beside=())


@pytest.mark.parametrize("name", _MXFP4)
def test_matrices_in_mxfp4_stay_as_they_are(name: str, source: Path, plain: Path, tmp_path: Path) -> None:
    quantize(source, plain, _MXFP4[name])
    report = export_model(source, tmp_path / "out", ExportOptions(check="quick"))
    assert (report.precision, report.kept_types, report.other_types) == ("keep", {"MXFP4": 14}, {"F32": 1})
    weights = find_source(source, None).open_model().weights
    for layer in load_file(plain / "model.safetensors"):
        if weights.block_type(layer) is not None:
            np.testing.assert_array_equal(weights.blocks(layer).dequantized(slice(None)), weights.read(layer))


_UP = "model.layers.1.mlp.up_proj."
_STATE = f"{_UP}weight.quant_state.bitsandbytes__nf4"
Spoil = Callable[[Tensors], object]


def _nested(tensors: Tensors) -> None:
    """Absolute maxima of which some parts are missing."""
    tensors[f"{_UP}weight.absmax"] = torch.zeros(96, dtype=torch.uint8)
    tensors[f"{_UP}weight.nested_absmax"] = torch.ones(1)


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("nf4", lambda t: t.pop(f"{_UP}weight"), "up_proj' lacks its weight"),
        ("nf4", lambda t: t.pop(f"{_UP}weight.absmax"), "lacks its weight.absmax"),
        ("nf4", lambda t: t.pop(_STATE), "lacks its weight.quant_state"),
        ("nf4", lambda t: t.update({_STATE: torch.zeros(5000, dtype=torch.uint8)}), "one of 5000 bytes"),
        ("nf4", lambda t: t.update({_STATE: t[_STATE][:9]}), "quant_state of '.*up_proj' is not valid JSON"),
        ("nf4", lambda t: t.update({_STATE: _state((96, 64), blocksize=0)}), r"unusable blocksize \(0"),
        ("nf4", lambda t: t.update({_STATE: _state((96, 64), blocksize=32)}), r"weight.absmax as the shape \(96,\)"),
        ("nf4", lambda t: t.update({_STATE: _state((96, 64), dtype="float64")}), "unusable dtype"),
        ("nf4", lambda t: t.update({_STATE: _state((96, 1 << 40))}), "unusable shape"),
        ("nf4", lambda t: t.update({_STATE: _state((1 << 30, 1 << 30))}), r"has weight as the shape \(3072, 1\)"),
        ("nf4", lambda t: t.update({_STATE: _state((64, 96))}), r"of the shape \(64, 96\) instead of \(96, 64\)"),
        ("nf4", lambda t: t.update({_STATE: _state((6144,))}), "unusable shape"),
        ("nf4", lambda t: t.update({_STATE: _state((96, 64), quant_type="fp4")}), "other values than those of fp4"),
        ("nf4", _nested, "lacks its weight.nested_quant_map"),
        ("nf4", lambda t: t[f"{_UP}weight.absmax"].fill_(torch.nan), "not all finite numbers"),
        ("int8", lambda t: t.pop(f"{_UP}SCB"), "lacks its SCB"),
        ("int8", lambda t: t.update({f"{_UP}SCB": torch.ones(64)}), r"SCB as the shape \(64,\)"),
        ("int8", lambda t: t[f"{_UP}weight_format"].fill_(2), "weight_format as another order than by rows"),
        ("mlx", lambda t: t.pop(f"{_UP}biases"), "lacks its biases"),
        ("mlx", lambda t: t.update({f"{_UP}biases": t[f"{_UP}biases"].float()}), "biases as F32"),
        ("mlx", lambda t: t.update({f"{_UP}weight": t[f"{_UP}weight"][:, :4].contiguous()}), "for 4 bits in 32s"),
        ("mlx", lambda t: t.update({f"{_UP}weight": torch.ones(96, 64)}), "has weight as F32"),
        ("mlx", lambda t: [t.pop(key) for key in list(t) if key.endswith(("scales", "biases"))], "holds no quantised"),
    ],
)
def test_a_spoilt_folder_is_one_sentence(name: str, spoil: Spoil, words: str, source: Path, plain: Path) -> None:
    quantize(source, plain, WRITERS[name])
    weights = load_file(source / "model.safetensors")
    spoil(weights)
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(ExportError, match=f"^[^\n]*{words}[^\n]*$"):
        load_model(find_source(source, None))


@pytest.mark.parametrize("name", WRITERS)
def test_random_changes_are_read_or_refused_in_one_sentence(name: str, source: Path, plain: Path) -> None:
    quantize(source, plain, WRITERS[name])
    refused = refusals_of_changes(source, lambda key: ".layers.1.mlp" in key)
    assert len(refused) > 8
    assert not [sentence for sentence in refused if "\n" in sentence]

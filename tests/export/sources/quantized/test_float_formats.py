"""FP8, NVFP4, MXFP4 and MXFP8 folders are widened bit for bit as the tools that wrote them do, or refused.

golden/floats.safetensors was written and widened by compressed-tensors 0.20.1 and, in part, widened by ModelOpt 0.47.0,
in fp32. Folders have the keys and types that Qwen3-8B-FP8 and DeepSeek-V3 (blocks), Ministral 3 (one scale), Llama 3.1
405B (FBGEMM), RedHatAI's FP8-dynamic and NVFP4, and nvidia's FP8 and NVFP4 are described to have, those of Quark what
amd-quark 0.13 packs; none was fetched.
"""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.architectures import check_architecture
from reader_edge_export.sources.find import find_source
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.errors import ConfigError, ExportError, ReaderEdgeError, UnsupportedArchitectureError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.conftest import TinyModel
from tests.export.source_models import load_folder, load_model
from tests.export.sources.quantized.test_quantized_formats import HeldTensor, Tensors, packing, widened
from tests.export.sources.source_folders import copy_folder
from tests.tiny_models import build_tiny_model, change_config

GOLDEN = load_file(Path(__file__).parent / "golden" / "floats.safetensors")
E4M3 = np.array(  # by code, from its definition
    [
        (-1) ** (code >> 7)
        * ((code & 7) * 2.0**-9 if not code >> 3 & 15 else (1 + (code & 7) / 8) * 2.0 ** ((code >> 3 & 15) - 7))
        for code in range(256)
    ]
)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def compressed(form: str, bits: int, strategy: str, **weights: object) -> dict[str, object]:
    scheme = {"num_bits": bits, "type": "float", "symmetric": True, "strategy": strategy} | weights
    groups = {"group_0": {"targets": ["Linear"], "weights": scheme, "format": form}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


def modelopt(algorithm: str) -> dict[str, object]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, "producer": {"name": "modelopt"}}


GOLDEN_SETTINGS = {
    "ct_fp8_channel": compressed("float-quantized", 8, "channel"),
    "ct_fp8_tensor": compressed("float-quantized", 8, "tensor"),
    "ct_fp8_block": compressed("float-quantized", 8, "block", block_structure=[16, 32]),
    "ct_nvfp4": compressed("nvfp4-pack-quantized", 4, "tensor_group", group_size=16),
    "ct_mxfp4": compressed("mxfp4-pack-quantized", 4, "group", group_size=32),
    "ct_mxfp8": compressed("mxfp8-quantized", 8, "group", group_size=32),
    "mo_fp8": modelopt("FP8"),
    "mo_nvfp4": modelopt("NVFP4"),
}


def golden(name: str) -> tuple[Tensors, torch.Tensor]:
    held = {key.partition(".")[2]: tensor for key, tensor in GOLDEN.items() if key.partition(".")[0] == name}
    expected = held.pop("weight")
    if "quantized" in held:
        held["weight"] = held.pop("quantized")
    return held, expected


@pytest.mark.parametrize("name", sorted(GOLDEN_SETTINGS))
def test_a_matrix_is_widened_bit_for_bit_as_its_tool_does(name: str) -> None:
    tensors, expected = golden(name)
    assert expected.unique().numel() > 16
    assert torch.equal(widened(packing(GOLDEN_SETTINGS[name]), tensors), expected)


def test_every_golden_matrix_is_compared() -> None:
    assert {key.partition(".")[0] for key in GOLDEN} == set(GOLDEN_SETTINGS)


def test_every_code_of_eight_bits_has_its_value_and_nan_is_none() -> None:
    codes = torch.arange(256, dtype=torch.uint8).reshape(2, 128).view(torch.float8_e4m3fn)
    found = widened(packing(fp8(None)), {"weight": codes, "weight_scale_inv": torch.tensor(1.0)}).flatten()
    assert found[[127, 255]].isnan().all()
    kept = [code for code in range(256) if code not in (127, 255)]
    np.testing.assert_array_equal(found[kept].numpy(), E4M3[kept].astype(np.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float8_e8m0fnu])
def test_blocks_have_the_values_that_transformers_gives_them(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(256, 384) * 100).to(torch.float8_e4m3fn)
    exponents = torch.randint(110, 120, (2, 3), dtype=torch.uint8)
    scales = exponents if dtype == torch.uint8 else exponents.view(torch.float8_e8m0fnu)
    if dtype.itemsize > 1:
        scales = (torch.rand(2, 3) * 1e-3).to(dtype)
    expected = Fp8Dequantize(None)._dequantize_one(weight, scales, torch.float32)
    tensors = {"weight": weight, "weight_scale_inv": scales}
    assert torch.equal(widened(packing(fp8([128, 128])), tensors), expected)


def test_last_blocks_may_be_smaller() -> None:
    """DeepSeek's `kv_a_proj_with_mqa` has 576 outputs, of which the last 64 are half a block."""
    codes = np.random.default_rng(0).integers(0, 127, (200, 300)).astype(np.uint8)
    scales = np.random.default_rng(1).uniform(1e-4, 1e-3, (2, 3)).astype(np.float32)
    expected = E4M3[codes] * np.repeat(np.repeat(scales.astype(np.float64), 128, 0), 128, 1)[:200, :300]
    tensors = {
        "weight": torch.from_numpy(codes).view(torch.float8_e4m3fn),
        "weight_scale_inv": torch.from_numpy(scales),
    }
    found = widened(packing(fp8([128, 128])), tensors)
    np.testing.assert_array_equal(found.numpy(), expected.astype(np.float32))


def fp8(block: list[int] | None) -> dict[str, object]:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": block}


_BESIDE = ("input_scale", "activation_scale", "input_global_scale", "k_scale", "v_scale")


@dataclass(frozen=True)
class Writer:
    """settings: of config.json. write: random parts of a matrix, and its values. beside: for other runtimes."""

    settings: dict[str, object]
    write: Callable[[Sequence[int], np.random.Generator], tuple[Tensors, Array]]
    weight_type: str
    beside: tuple[str, ...] = _BESIDE


def _fp8_parts(block: tuple[int, int], dtype: torch.dtype, scale: str, shape: Callable[[torch.Tensor], Any]) -> Any:
    """block: 0 for all. shape: of scales (R, C), as the format has them."""

    def write(size: Sequence[int], rng: np.random.Generator) -> tuple[Tensors, Array]:
        codes = rng.integers(0, 256, size).astype(np.uint8)
        codes[codes & 127 == 127] = 3
        rows, columns = (own or whole for own, whole in zip(block, size, strict=True))
        number = (-(-size[0] // rows), -(-size[1] // columns))
        scales = torch.from_numpy(rng.uniform(1e-4, 5e-4, number)).to(dtype)
        wide = np.repeat(np.repeat(scales.double().numpy(), rows, 0), columns, 1)[: size[0], : size[1]]
        weight = torch.from_numpy(codes).view(torch.float8_e4m3fn)
        return {"weight": weight, scale: scales.reshape(shape(scales))}, E4M3[codes] * wide

    return write


def _fp4_parts(group: int, whole: str, packed: str) -> Any:
    def write(size: Sequence[int], rng: np.random.Generator) -> tuple[Tensors, Array]:
        pairs = rng.integers(0, 256, (size[0], size[1] // 2)).astype(np.uint8)
        number = (size[0], size[1] // group)
        values = E2M1[np.stack([pairs & 15, pairs >> 4], -1).reshape(size)]
        parts = {packed: torch.from_numpy(pairs)}
        if not whole:
            exponents = rng.integers(118, 123, number).astype(np.uint8)
            scales = 2.0 ** (exponents.astype(np.float64) - 127)
            parts["weight_scale"] = torch.from_numpy(exponents)
        else:
            codes = rng.integers(40, 120, number).astype(np.uint8)
            parts["weight_scale"] = torch.from_numpy(codes).view(torch.float8_e4m3fn)
            is_divided = whole == "weight_global_scale"
            parts[whole] = torch.tensor([3011.7]) if is_divided else torch.tensor(1 / 3011.7)
            of_all = parts[whole].double().item()
            scales = (E4M3[codes] / of_all if is_divided else E4M3[codes] * of_all).astype(np.float32)
        return parts, values * np.repeat(scales.astype(np.float64), group, 1)

    return write


def quark(kind: str, scheme: str, **weight: object) -> dict[str, object]:
    """As AMD Quark 0.13 writes it."""
    given = {"dtype": kind, "qscheme": scheme, "is_dynamic": False, "symmetric": None} | weight
    whole = {"weight": given, "input_tensors": None, "output_tensors": None, "bias": None}
    export = {"weight_format": "real_quantized", "pack_method": "reorder", "kv_cache_group": []}
    return {
        **{"quant_method": "quark", "global_quant_config": whole, "exclude": ["lm_head"], "export": export},
        **{"layer_quant_config": {}, "layer_type_quant_config": {}, "algo_config": None},
    }


_BF16, _FP32 = torch.bfloat16, torch.float32
WRITERS = {
    "fp8 in blocks": Writer(
        fp8([128, 128]), _fp8_parts((128, 128), _FP32, "weight_scale_inv", lambda s: s.shape), "FP8"
    ),
    "fp8 in small blocks": Writer(
        fp8([16, 32]), _fp8_parts((16, 32), _BF16, "weight_scale_inv", lambda s: s.shape), "FP8"
    ),
    "fp8 with one scale": Writer(fp8(None), _fp8_parts((0, 0), _BF16, "weight_scale_inv", lambda s: ()), "FP8"),
    "fbgemm": Writer(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
        _fp8_parts((1, 0), _FP32, "weight_scale", lambda s: s.shape),
        "FBGEMM FP8",
    ),
    "compressed-tensors by channel": Writer(
        GOLDEN_SETTINGS["ct_fp8_channel"],
        _fp8_parts((1, 0), _BF16, "weight_scale", lambda s: s.shape),
        "compressed-tensors FP8",
    ),
    "compressed-tensors nvfp4": Writer(
        GOLDEN_SETTINGS["ct_nvfp4"],
        _fp4_parts(16, "weight_global_scale", "weight_packed"),
        "compressed-tensors NVFP4",
    ),
    "compressed-tensors mxfp4": Writer(
        GOLDEN_SETTINGS["ct_mxfp4"], _fp4_parts(32, "", "weight_packed"), "compressed-tensors MXFP4"
    ),
    "modelopt fp8": Writer(modelopt("FP8"), _fp8_parts((0, 0), _FP32, "weight_scale", lambda s: ()), "ModelOpt FP8"),
    "modelopt fp8 in blocks": Writer(
        modelopt("FP8_PB_WO"),
        _fp8_parts((128, 128), _FP32, "weight_scale", lambda s: (s.shape[0], 1, s.shape[1], 1)),
        "ModelOpt FP8",
    ),
    "quark fp8": Writer(
        quark("fp8_e4m3", "per_tensor"), _fp8_parts((0, 0), _BF16, "weight_scale", lambda s: ()), "Quark FP8"
    ),
    "quark mxfp4": Writer(
        quark("fp4", "per_group", group_size=32, scale_format="e8m0"), _fp4_parts(32, "", "weight"), "Quark MXFP4"
    ),
    "modelopt nvfp4": Writer(modelopt("NVFP4"), _fp4_parts(16, "weight_scale_2", "weight"), "ModelOpt NVFP4"),
}


def quantize(folder: Path, plain: Path, writer: Writer) -> None:
    """Quantise a folder's layers in place; `plain`, a copy of it, gets the widened weights."""
    rng = np.random.default_rng(0)
    weights = load_file(folder / "model.safetensors")
    plain_weights = dict(weights)
    for name in sorted(weights):
        if ".layers." in name and name.endswith("weight") and weights[name].ndim == 2:
            module = name.removesuffix("weight")
            parts, values = writer.write(weights.pop(name).shape, rng)
            plain_weights[name] = torch.from_numpy(values.astype(np.float32))
            weights |= {f"{module}{part}": tensor for part, tensor in parts.items()}
            weights |= {f"{module}{part}": torch.ones(()) for part in writer.beside}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    save_file(plain_weights, plain / "model.safetensors", {"format": "pt"})
    change_config(folder, quantization_config=writer.settings)


def _wide(tmp_path: Path) -> tuple[Path, Path]:
    """A model of 192 inputs, more than a block and less than two, and a copy of it."""
    sizes = {"hidden_size": 192, "intermediate_size": 320, "num_attention_heads": 12, "num_key_value_heads": 4}
    source = build_tiny_model("llama", tmp_path / "wide", **sizes)
    return source, Path(shutil.copytree(source, tmp_path / "plain"))


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_is_the_model_of_its_widened_weights(name: str, tmp_path: Path) -> None:
    source, plain = _wide(tmp_path)
    quantize(source, plain, WRITERS[name])
    found = find_source(source, None)
    weights, expected = dict(load_model(found).named_parameters()), dict(load_folder(plain).named_parameters())
    assert weights.keys() == expected.keys()
    for parameter, values in expected.items():
        assert torch.equal(weights[parameter], values), parameter
    assert found.weight_types[0] == WRITERS[name].weight_type


@pytest.mark.parametrize("name", ["fp8 in small blocks", "modelopt nvfp4"])
def test_experts_of_their_own_are_read_too(name: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    source, plain = (Path(shutil.copytree(tiny_model("qwen3_moe"), tmp_path / each)) for each in ("source", "plain"))
    quantize(source, plain, WRITERS[name])
    expected = dict(load_model(find_source(plain, None)).named_parameters())
    for parameter, values in load_model(find_source(source, None)).named_parameters():
        assert torch.equal(expected[parameter], values), parameter


def fused(name: str, is_stacked: bool) -> Callable[[Tensors], None]:
    """Experts' own tensors as transformers saves them, all in one, and Mistral's and ModelOpt's; or as ModelOpt splits
    them, by matrices first. name: of a writer."""

    def change(tensors: Tensors) -> None:
        own: dict[tuple[str, str, str], dict[int, torch.Tensor]] = {}
        for key in [key for key in tensors if ".experts." in key]:
            before, _, rest = key.partition(".experts.")
            expert, matrix, part = rest.split(".")
            if is_stacked:
                own.setdefault((before, matrix, part), {})[int(expert)] = tensors.pop(key)
            else:
                tensors[f"{before}.experts.{matrix}.{expert}.{part}"] = tensors.pop(key)
        parts = {key: _stack([by_expert[number] for number in range(len(by_expert))]) for key, by_expert in own.items()}
        for (before, matrix, part), stack in parts.items():
            if matrix == "up_proj":
                continue
            ending = {"weight": "", "weight_scale_inv": "_scale_inv"}.get(part, f"_{part}")
            both = stack
            if matrix == "gate_proj" and stack.ndim > 1:
                both = _cat(stack, parts[before, "up_proj", part])
            elif matrix == "gate_proj" and part.startswith("weight_scale") and name == "fp8 with one scale":
                both = torch.stack((stack, parts[before, "up_proj", part]), dim=1).unsqueeze(-1)
            whole = "down_proj" if matrix == "down_proj" else "gate_up_proj"
            tensors[f"{before}.experts.{whole}{ending}"] = both

    return change


def _stack(tensors: list[torch.Tensor]) -> torch.Tensor:
    kind = tensors[0].dtype
    return torch.stack([each.view(torch.uint8) if kind.itemsize == 1 else each for each in tensors]).view(kind)


def _cat(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    if first.dtype.itemsize > 1:
        return torch.cat((first, second), dim=1)
    return torch.cat((first.view(torch.uint8), second.view(torch.uint8)), dim=1).view(first.dtype)


@pytest.mark.parametrize("is_stacked", [True, False])
@pytest.mark.parametrize("name", ["fp8 in small blocks", "fp8 with one scale", "modelopt nvfp4"])
def test_experts_in_one_tensor_or_by_matrices_are_read_too(
    name: str, is_stacked: bool, tiny_model: TinyModel, tmp_path: Path
) -> None:
    own, plain = (Path(shutil.copytree(tiny_model("qwen3_moe"), tmp_path / each)) for each in ("own", "plain"))
    quantize(own, plain, WRITERS[name])
    source = copy_folder(own, tmp_path / "source", fused(name, is_stacked))
    expected = dict(load_model(find_source(plain, None)).named_parameters())
    for parameter, values in load_model(find_source(source, None)).named_parameters():
        assert torch.equal(expected[parameter], values), parameter


def test_a_block_of_gates_and_of_what_is_behind_them_is_refused() -> None:
    """With 48 rows of each, readers do not agree where the second block of 32 rows begins."""
    tensors = {"weight": torch.ones(96, 64).to(torch.float8_e4m3fn), "weight_scale_inv": torch.ones(3, 2)}
    parts = {name: HeldTensor.of(name, tensor) for name, tensor in tensors.items()}
    assert packing(fp8([32, 32])).shape_of("mlp.up_proj", parts) == (96, 64)
    with pytest.raises(ExportError, match=r"gate_up_proj' has tensors as 8 bits with scales of the shape \(3, 2\)"):
        packing(fp8([32, 32])).shape_of("mlp.experts.gate_up_proj", parts)


def test_scales_of_another_shape_than_rows_of_blocks_are_none_of_gguf_s() -> None:
    mxfp4 = packing(GOLDEN_SETTINGS["ct_mxfp4"])
    for rows, shape, is_in_mxfp4 in ((4, (4, 1), True), (4, (4, 1, 1), False), (4, (4,), False), (1, (), False)):
        tensors = {"weight_packed": torch.ones(rows, 16), "weight_scale": torch.ones(shape)}
        parts = {name: HeldTensor.of(name, tensor.to(torch.uint8)) for name, tensor in tensors.items()}
        assert mxfp4.shape_of("mlp.up_proj", parts) == (rows, 32)
        assert mxfp4.is_in_mxfp4("mlp.up_proj", parts) is is_in_mxfp4


def beside_images(text: Path) -> None:
    """Make a folder one of Mistral 3's, as Ministral 3 is published: its text model quantised, the rest in BF16."""
    own = json.loads((text / "config.json").read_text())
    settings = own.pop("quantization_config")
    whole = {
        **{"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], "text_config": own},
        **{"vision_config": {"model_type": "pixtral"}, "quantization_config": settings},
        "tie_word_embeddings": own["tie_word_embeddings"],
    }
    (text / "config.json").write_text(json.dumps(whole))
    tensors = load_file(text / "model.safetensors")
    named = {f"language_model.{key}": tensor for key, tensor in tensors.items()}
    images = {"vision_tower.patch_conv.weight": torch.ones(4, 4, dtype=torch.bfloat16)}
    save_file(named | images, text / "model.safetensors", {"format": "pt"})


def test_the_text_model_beside_one_of_images_is_read_too(tiny_model: TinyModel, tmp_path: Path) -> None:
    text, plain = (Path(shutil.copytree(tiny_model("ministral3"), tmp_path / each)) for each in ("text", "plain"))
    quantize(text, plain, WRITERS["fp8 with one scale"])
    beside_images(text)
    expected = dict(load_model(find_source(plain, None)).named_parameters())
    for parameter, values in load_model(find_source(text, None)).named_parameters():
        assert torch.equal(expected[parameter], values), parameter


@pytest.mark.parametrize(("name", "precision"), [("fp8 in blocks", "int8"), ("modelopt nvfp4", "int4")])
def test_a_folder_exports_like_the_widened_one_with_its_quality(name: str, precision: str, tmp_path: Path) -> None:
    source, plain = _wide(tmp_path)
    quantize(source, plain, WRITERS[name])
    for folder in (source, plain):
        export_model(folder, tmp_path / f"{folder.name} out", ExportOptions(precision))
    quantised, whole = (ModelPackage.open(tmp_path / f"{each.name} out").manifest for each in (source, plain))
    assert quantised.files == whole.files
    assert quantised.checks["mean_kl_nats"] == whole.checks["mean_kl_nats"]
    assert quantised.checks["source_weight_bits"] == (8 if precision == "int8" else 4)
    with pytest.raises(ConfigError, match=r"'keep' is for GGUF files .*: use 'int8', 'int4' or another"):
        export_model(source, tmp_path / "kept", ExportOptions("keep"))


def test_what_modelopt_says_in_a_file_of_its_own_is_read(source: Path, tmp_path: Path) -> None:
    plain = Path(shutil.copytree(source, tmp_path / "plain"))
    quantize(source, plain, WRITERS["modelopt fp8"])
    change_config(source, quantization_config=...)
    own = '{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}'
    (source / "hf_quant_config.json").write_text(own)
    expected = dict(load_folder(plain).named_parameters())
    for parameter, values in load_model(find_source(source, None)).named_parameters():
        assert torch.equal(expected[parameter], values), parameter


def test_layers_of_several_algorithms_are_each_read_by_their_own(source: Path, tmp_path: Path) -> None:
    plain = Path(shutil.copytree(source, tmp_path / "plain"))
    fp4, rng = WRITERS["modelopt nvfp4"], np.random.default_rng(1)
    quantize(source, plain, WRITERS["modelopt fp8"])
    weights, name = load_file(source / "model.safetensors"), "model.layers.1.mlp.up_proj."
    parts, values = fp4.write(weights[f"{name}weight"].shape, rng)
    weights |= {f"{name}{part}": tensor for part, tensor in parts.items()}
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    layers = {"model.layers.0.mlp.up_proj": {"quant_algo": "FP8"}, name[:-1]: {"quant_algo": "NVFP4", "group_size": 16}}
    change_config(source, quantization_config=modelopt("MIXED_PRECISION") | {"quantized_layers": layers})
    found = find_source(source, None)
    assert found.weight_types[:2] == ("ModelOpt NVFP4", "ModelOpt FP8")
    loaded = dict(load_model(found).named_parameters())[f"{name}weight"]
    assert torch.equal(loaded, torch.from_numpy(values.astype(np.float32)))


Spoil = Callable[[Tensors], object]
_UP = "model.layers.1.mlp.up_proj."


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("fp8 in blocks", lambda t: t.pop(f"{_UP}weight_scale_inv"), "up_proj.weight' as F8_E4M3 without scales"),
        ("fp8 in blocks", lambda t: t.update({f"{_UP}weight_scale_inv": torch.ones(3, 2)}), "scales of the shape"),
        ("fp8 in blocks", lambda t: t.update({f"{_UP}weight_scale": torch.ones(1, 1)}), "a second weight_scale"),
        ("fp8 in blocks", lambda t: t.update({f"{_UP}weight_scale_2": torch.ones(1)}), "a second scale"),
        ("fp8 in blocks", lambda t: t.pop(f"{_UP}weight"), "up_proj' lacks its weight"),
        ("fp8 in blocks", lambda t: t.update({f"{_UP}weight": torch.ones(96, 64)}), "has weight as F32"),
        (
            "fp8 in blocks",
            lambda t: t[f"{_UP}weight"].view(torch.uint8)[3].fill_(127),
            "not all finite numbers, model.layers.1.mlp.up_proj.weight",
        ),
        ("modelopt nvfp4", lambda t: t.pop(f"{_UP}weight_scale_2"), "up_proj' lacks its weight_scale_2"),
        ("modelopt nvfp4", lambda t: t.update({f"{_UP}weight_scale_2": torch.ones(9)}), r"the shape \(9,\)"),
        ("modelopt nvfp4", lambda t: t.update({f"{_UP}weight_scale": torch.ones(96, 4)}), "weight_scale as F32"),
        (
            "modelopt nvfp4",
            lambda t: t.update({f"{_UP}pre_quant_scale": torch.ones(64)}),
            "up_proj.pre_quant_scale, for which",
        ),
        ("compressed-tensors mxfp4", lambda t: t[f"{_UP}weight_scale"].fill_(255), "not all finite numbers"),
    ],
)
def test_a_spoilt_folder_is_one_sentence(name: str, spoil: Spoil, words: str, source: Path, tmp_path: Path) -> None:
    plain = Path(shutil.copytree(source, tmp_path / "plain"))
    quantize(source, plain, WRITERS[name])
    weights = load_file(source / "model.safetensors")
    spoil(weights)
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(ExportError, match=f"^[^\n]*{words}[^\n]*$"):
        load_model(find_source(source, None))


def changed(tensor: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Another type, shape or number of values."""
    values = tensor.float()
    changes = [
        tensor.view(torch.uint8).flatten()[: int(rng.integers(1, 64))] if tensor.ndim else values.int(),
        values.reshape(-1)[:7],
        values.int(),
        values.unsqueeze(0).repeat(2, *[1] * tensor.ndim),
        values.to(torch.float8_e5m2),
        torch.ones(()),
        torch.full_like(values, torch.nan).to(tensor.dtype),
    ]
    return changes[int(rng.integers(len(changes)))].contiguous()


def refusals_of_changes(source: Path, is_changed: Callable[[str], bool]) -> list[str]:
    """What twenty random changes of tensors of these names are refused with; others are read."""
    good, refused = load_file(source / "model.safetensors"), []
    names = [*filter(is_changed, good)]
    for number in range(20):
        rng = np.random.default_rng(number)
        key = names[int(rng.integers(len(names)))]
        save_file(good | {key: changed(good[key], rng)}, source / "model.safetensors", metadata={"format": "pt"})
        try:
            load_model(find_source(source, None))
        except ReaderEdgeError as error:
            refused.append(str(error))
    return refused


@pytest.mark.parametrize("name", WRITERS)
def test_random_changes_are_read_or_refused_in_one_sentence(name: str, source: Path, tmp_path: Path) -> None:
    quantize(source, Path(shutil.copytree(source, tmp_path / "plain")), WRITERS[name])
    refused = refusals_of_changes(source, lambda key: ".layers.1.mlp" in key and not key.endswith(_BESIDE))
    assert len(refused) > 10
    assert not [sentence for sentence in refused if "\n" in sentence]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (fp8([128]), r"FP8 in blocks of \[128\]"),
        (fp8([0, 128]), r"FP8 in blocks of \[0, 128\]"),
        (fp8([128, 128]) | {"fmt": "e5m2"}, "FP8 in blocks of"),
        (modelopt("W4A8_AWQ"), "NVIDIA ModelOpt as 'W4A8_AWQ'"),
        (modelopt("NVFP4_AWQ"), "NVIDIA ModelOpt as 'NVFP4_AWQ'"),
        (modelopt("MIXED_PRECISION"), "NVIDIA ModelOpt as 'MIXED_PRECISION'"),
        (modelopt("MIXED_PRECISION") | {"quantized_layers": {"a": {"quant_algo": "INT8"}}}, "ModelOpt as 'INT8'"),
        (quark("int4", "per_group"), "AMD Quark as .*'dtype': 'int4'"),
        (quark("fp4", "per_group", group_size=16, scale_format="e8m0"), "AMD Quark as .*'group_size': 16"),
        (quark("fp8_e4m3", "per_tensor") | {"algo_config": [{"name": "rotation"}]}, "AMD Quark as .*rotation"),
        (quark("fp8_e4m3", "per_tensor") | {"global_quant_config": None}, "AMD Quark as 'no weights'"),
        (
            quark("fp8_e4m3", "per_tensor") | {"layer_quant_config": {"*up_proj": {"weight": [1]}}},
            r"AMD Quark as '\[1\]'",
        ),
        (compressed("float-quantized", 8, "block"), r"'float-quantized' \('float' of 8 bits\)"),
        (compressed("float-quantized", 8, "group", group_size="8"), "'float-quantized'"),
        (compressed("float-quantized", 8, "tensor", symmetric=False), "'float-quantized'"),
        (compressed("nvfp4-pack-quantized", 4, "tensor_group", group_size=64), "'nvfp4-pack-quantized'"),
        (compressed("nvfp4-pack-quantized", 8, "tensor_group", group_size=16), "'nvfp4-pack-quantized'"),
    ],
)
def test_what_is_not_read_is_refused_by_its_name(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=f"^[^\n]*{words}[^\n]* give the unquantised model"):
        check_architecture({"model_type": "llama", "quantization_config": settings})


def test_integers_and_floats_in_one_folder_are_refused() -> None:
    groups = {
        "a": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}, "format": "float-quantized"},
        "b": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}, "format": "pack-quantized"},
    }
    settings = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    with pytest.raises(UnsupportedArchitectureError, match=re.escape("'pack-quantized' ('int' of 4 bits)")):
        check_architecture({"model_type": "llama", "quantization_config": settings})

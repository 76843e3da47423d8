"""Quantised matrices are widened bit for bit as the tools that wrote them widen them, and nothing else is guessed.

golden/quantized.safetensors was written by the tools' own code: AutoAWQ 0.2.9 (`from_linear`, `dequantize_gemm`),
compressed-tensors 0.20.0 and, for orders of inputs, 0.12.2 (`compress`, `decompress`), and GPTQModel 7.7.0's
`dequantize_weight` on words packed as AutoGPTQ packs them; all with scales in fp32, so that no product was rounded.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from reader_edge_export.sources.architectures import check_architecture
from reader_edge_export.sources.folder.stored_tensors import SafetensorsTensor
from reader_edge_export.sources.quantized.formats import Quantization, quantization_of
from reader_edge_export.sources.quantized.packed_tensors import packing_of
from reader_edge_export.sources.quantized.packing import Packing
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from tests.export.sources.source_folders import packed

GOLDEN = load_file(Path(__file__).parent / "golden" / "quantized.safetensors")
DTYPES = {torch.int32: "I32", torch.int64: "I64", torch.int8: "I8", torch.float16: "F16", torch.bfloat16: "BF16",
          torch.float32: "F32", torch.uint8: "U8", torch.float8_e4m3fn: "F8_E4M3",
          torch.float8_e8m0fnu: "F8_E8M0", torch.uint32: "U32"}  # fmt: skip

Tensors = dict[str, torch.Tensor]


class HeldTensor(SafetensorsTensor):
    """A tensor in memory in place of a file."""

    values: ClassVar[dict[str, torch.Tensor]] = {}

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> "HeldTensor":
        cls.values[name] = tensor
        return cls(name, Path("held"), tuple(tensor.shape), DTYPES[tensor.dtype], offset=0, state=())

    def read(self) -> torch.Tensor:
        return self.values[self.name]


def widened(packing: Packing, tensors: Tensors) -> torch.Tensor:
    shape = packing.shape_of("module", {name: HeldTensor.of(name, tensor) for name, tensor in tensors.items()})
    out = torch.full(shape, torch.nan)
    packing.codes_of("module", shape, tensors).write_into(out)
    return out


def golden(name: str) -> tuple[Tensors, torch.Tensor]:
    """Parts and the widened matrix."""
    held = {key.partition(".")[2]: tensor for key, tensor in GOLDEN.items() if key.partition(".")[0] == name}
    expected = held.pop("weight")
    if "int" in held:
        held["weight"] = held.pop("int")
    return held, expected


def awq(**settings: object) -> dict[str, object]:
    return {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"} | settings


def gptq(**settings: object) -> dict[str, object]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": True} | settings


def compressed(form: str, **weights: object) -> dict[str, object]:
    scheme = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16} | weights
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme}},
        "ignore": ["lm_head"],
    }


ORDERED = {"desc_act": True, "sym": False}
CHANNEL: dict[str, object] = {"num_bits": 8, "strategy": "channel", "group_size": None}
GOLDEN_SETTINGS = {
    "awq_gemm": awq(),
    "awq_gemv": awq(version="gemv"),
    "gptq4_sym": gptq(),
    "gptq4_order_asym": gptq(**ORDERED),
    "gptq4_v2_asym": gptq(**ORDERED, checkpoint_format="gptq_v2"),
    "gptq8_sym": gptq(bits=8),
    "gptq8_v2_asym": gptq(bits=8, **ORDERED, checkpoint_format="gptq_v2"),
    "pack4_group_sym": compressed("pack-quantized"),
    "pack4_group_asym": compressed("pack-quantized", symmetric=False),
    "pack4_order": compressed("pack-quantized", actorder="group"),
    "pack8_channel_sym": compressed("pack-quantized", **CHANNEL),
    "pack8_channel_asym": compressed("pack-quantized", **CHANNEL, symmetric=False),
    "int8_channel_sym": compressed("int-quantized", **CHANNEL),
    "int8_group_asym": compressed("int-quantized", num_bits=8, symmetric=False),
    "naive8_tensor_sym": compressed("naive-quantized", num_bits=8, strategy="tensor", group_size=None),
}


def packing(settings: Mapping[str, Any]) -> Packing:
    quantization = quantization_of({"quantization_config": settings})
    assert isinstance(quantization, Quantization)
    return packing_of(quantization)


@pytest.mark.parametrize("name", sorted(GOLDEN_SETTINGS))
def test_a_matrix_is_widened_bit_for_bit_as_its_tool_does(name: str) -> None:
    tensors, expected = golden(name)
    assert expected.unique().numel() > 16
    assert torch.equal(widened(packing(GOLDEN_SETTINGS[name]), tensors), expected)


def test_every_golden_matrix_is_compared() -> None:
    assert {key.partition(".")[0] for key in GOLDEN} == set(GOLDEN_SETTINGS)


def test_zero_points_of_awq_are_read_whatever_the_settings_say_of_them() -> None:
    """transformers always reads `qzeros`; AutoRound stores symmetric ones there too, with zero_point false."""
    tensors, expected = golden("awq_gemm")
    assert torch.equal(widened(packing(awq(zero_point=False)), tensors), expected)


@pytest.mark.parametrize(("meta", "order"), [({}, (0, 2, 1, 3)), ({"quantizer": "gptqmodel:7.7.0"}, (0, 1, 2, 3))])
def test_awq_of_eight_bits_is_in_the_order_of_who_writes_it(meta: dict[str, str], order: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    codes, zeros = rng.integers(0, 256, (64, 32)), rng.integers(0, 256, (2, 32))
    scales = rng.uniform(0.01, 0.02, (2, 32)).astype(np.float16)
    tensors = {
        "qweight": packed(codes, 8, order),
        "qzeros": packed(zeros, 8, order),
        "scales": torch.from_numpy(scales),
    }
    expected = (codes - np.repeat(zeros, 32, 0)) * np.repeat(scales.astype(np.float64), 32, 0)
    assert np.array_equal(widened(packing(awq(bits=8, meta=meta)), tensors).numpy(), expected.T)


def test_zero_points_of_gptq_that_tools_read_differently_are_refused_but_of_the_tool_that_borrows() -> None:
    tensors, expected = golden("gptq4_v2_asym")
    zeros = tensors["qzeros"].clone()
    zeros[:, 0] &= -16  # the first of each group becomes nought
    first = dict(tensors, qzeros=zeros)
    less = dict(tensors, qzeros=zeros - 0x11111111)
    settings = gptq(**ORDERED)
    with pytest.raises(ExportError, match="zero points of nought, which the format 'gptq' cannot hold without doubt"):
        widened(packing(settings), less)
    by_tool = packing(settings | {"meta": {"quantizer": ["gptqmodel:1.4.0"]}})
    two = packing(settings | {"checkpoint_format": "gptq_v2"})
    assert torch.equal(widened(by_tool, less), widened(two, first))
    assert not torch.equal(widened(two, first), expected)


def test_the_second_format_of_gptq_taken_for_the_first_is_noticed() -> None:
    tensors, _ = golden("gptq4_sym")
    later = dict(tensors, qzeros=tensors["qzeros"] + 0x11111111)
    with pytest.raises(ExportError, match="zero points other than the middle of a symmetric format"):
        widened(packing(gptq()), later)


def test_groups_of_neighbours_need_no_g_idx_and_an_order_that_the_config_denies_is_refused() -> None:
    tensors, expected = golden("gptq4_sym")
    order = tensors.pop("g_idx")
    assert torch.equal(widened(packing(gptq()), tensors), expected)
    with pytest.raises(ExportError, match="an order of inputs that its config denies"):
        widened(packing(gptq()), tensors | {"g_idx": order.flip(0)})
    with pytest.raises(ExportError, match="lacks its g_idx"):
        widened(packing(gptq(desc_act=True)), tensors)


@pytest.mark.parametrize("group", [-1, 2, 1 << 30])
def test_groups_that_are_not_there_are_refused(group: int) -> None:
    tensors, _ = golden("gptq4_order_asym")
    tensors["g_idx"] = tensors["g_idx"].clone()
    tensors["g_idx"][3] = group
    with pytest.raises(ExportError, match="has g_idx as groups from"):
        widened(packing(gptq(**ORDERED)), tensors)


def test_an_order_of_compressed_tensors_that_is_not_known_yet_is_none() -> None:
    tensors, expected = golden("pack4_group_sym")
    unknown = tensors | {"weight_g_idx": torch.full((32,), -1, dtype=torch.int32)}
    assert torch.equal(widened(packing(compressed("pack-quantized")), unknown), expected)
    uneven = tensors | {"weight_g_idx": torch.zeros(32, dtype=torch.int32)}
    with pytest.raises(ExportError, match="an order that does not have 16 inputs of each group"):
        widened(packing(compressed("pack-quantized")), uneven)


def test_zero_points_that_are_not_packed_are_read_too() -> None:
    tensors, expected = golden("pack4_group_asym")
    words = tensors["weight_zero_point"]
    zeros = torch.stack([(words >> (4 * place) & 15) - 8 for place in range(8)], 1).flatten(0, 1).to(torch.int8)
    plain = tensors | {"weight_zero_point": zeros}
    assert torch.equal(widened(packing(compressed("pack-quantized", symmetric=False)), plain), expected)


@pytest.mark.parametrize("group_size", [16, 64, -1, None])
def test_groups_of_another_size_than_the_settings_say_are_refused_where_shapes_do_not_tell(group_size: int) -> None:
    tensors, _ = golden("awq_gemv")
    with pytest.raises(ExportError, match=r"^The quantised matrix 'module' has [^\n]*groups[^\n]*$"):
        widened(packing(awq(version="gemv", group_size=group_size)), tensors)


def test_a_refusal_is_one_line_whatever_the_settings_hold() -> None:
    with pytest.raises(UnsupportedArchitectureError) as refused:
        packing(compressed("pack-quantized", type="int\n\x1b[2J"))
    assert str(refused.value).isprintable()


Spoil = Callable[[Tensors], object]
SPOILT: list[tuple[str, Spoil]] = [
    ("awq_gemm", lambda t: t.pop("qzeros")),
    ("awq_gemm", lambda t: t.update(scales=t["scales"][:1])),
    ("awq_gemm", lambda t: t.update(qweight=t["qweight"].long())),
    ("awq_gemm", lambda t: t.update(qzeros=t["qzeros"][:, :2])),
    ("awq_gemm", lambda t: t.update(scales=t["scales"].int())),
    ("awq_gemv", lambda t: t.update(scales=t["scales"][:, :8])),
    ("awq_gemv", lambda t: t.update(qzeros=t["qzeros"][:4])),
    ("gptq4_sym", lambda t: t.update(qzeros=t["qzeros"][:, :1])),
    ("gptq4_sym", lambda t: t.update(scales=t["scales"][:, :8])),
    ("gptq4_sym", lambda t: t.update(g_idx=t["g_idx"][:5])),
    ("gptq4_sym", lambda t: t.update(qweight=t["qweight"][:0])),
    ("gptq4_sym", lambda t: t.update(qweight=t["qweight"].repeat(2, 1))),
    ("pack4_group_sym", lambda t: t.update(weight_shape=torch.tensor([16, 1 << 40]))),
    ("pack4_group_sym", lambda t: t.update(weight_shape=torch.tensor([-16, 32]))),
    ("pack4_group_sym", lambda t: t.update(weight_shape=torch.zeros(1 << 4, dtype=torch.int64))),
    ("pack4_group_sym", lambda t: t.update(weight_scale=t["weight_scale"].repeat(1, 4))),
    ("pack4_group_sym", lambda t: t.update(weight_scale=t["weight_scale"][:3])),
    ("pack4_group_sym", lambda t: t.pop("weight_scale")),
    ("pack4_group_asym", lambda t: t.pop("weight_zero_point")),
    ("pack4_group_asym", lambda t: t.update(weight_zero_point=t["weight_zero_point"][:1])),
    ("int8_group_asym", lambda t: t.update(weight=t["weight"].float())),
]


@pytest.mark.parametrize(("name", "spoil"), SPOILT)
def test_parts_that_do_not_fit_are_one_sentence(name: str, spoil: Spoil) -> None:
    tensors, _ = golden(name)
    spoil(tensors)
    with pytest.raises(
        ExportError, match=r"^The quantised matrix 'module' (has|lacks) [^\n]*fetch the model again[^\n]*$"
    ):
        widened(packing(GOLDEN_SETTINGS[name]), tensors)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": False}, "with bitsandbytes of neither"),
        ({"load_in_8bit": True, "load_in_4bit": True}, "with bitsandbytes of neither 4 nor 8 bits, or of both"),
        ({"bits": 7, "group_size": 64}, "with MLX as .*'bits': 7"),
        ({"bits": 4, "group_size": 48}, "with MLX as .*'group_size': 48"),
        ({"bits": 4, "group_size": 64.0}, "with MLX as"),
        ({"bits": 4, "group_size": 64, "mode": "mxfp4"}, "with MLX as .*'mode': 'mxfp4'"),
        ({"bits": 4, "group_size": 64, "mode": [1]}, "with MLX as"),
        ({"bits": 4, "group_size": 64, "lm_head": {"bits": "8"}}, "with MLX as .*'bits': '8'"),
        ({"quant_method": "hqq"}, "with HQQ"),
        ({"quant_method": "aqlm"}, "with AQLM"),
        ({"quant_method": "eetq"}, "with EETQ"),
        ({"quant_method": "mxfp4"}, "with MXFP4"),
        ({"quant_method": "torchao"}, "with torchao"),
        ({"quant_method": "quanto"}, "with Quanto"),
        ({"quant_method": "auto-round", "bits": 4}, "with AutoRound"),
        ({"quant_method": "new_one"}, "with 'new_one'"),
        ({"something": 1}, "with 'None'"),
        ([4], r"describes as \[4\]"),
        (gptq(bits=3), "GPTQ of 3 bits"),
        (gptq(bits="4"), "GPTQ of '4' bits"),
        (gptq(bits=True), "GPTQ of True bits"),
        (gptq(group_size=0), "in groups of 0"),
        (gptq(group_size="128"), "in groups of '128'"),
        (gptq(group_size=[1]), r"in groups of \[1\]"),
        (awq(bits=None), "AWQ of None bits"),
        (compressed("pack-quantized", num_bits=3), "compressed-tensors of 3 bits"),
        (compressed("pack-quantized", num_bits=[4]), r"compressed-tensors of \[4\] bits"),
        (compressed("marlin-24"), "'marlin-24'"),
        (compressed("dense") | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "'sparse-24-bitmask'"),
        (compressed("pack-quantized") | {"transform_config": {"config_groups": {"R3": {}}}}, "with rotations"),
        (compressed("pack-quantized") | {"config_groups": None}, "compressed-tensors as"),
        (compressed("pack-quantized") | {"config_groups": {"a": [1], "b": {"weights": 3}}}, "compressed-tensors as"),
    ],
)
def test_another_format_is_refused_by_its_name_with_a_way_out(settings: object, words: str) -> None:
    config = {"model_type": "llama", "quantization_config": settings}
    with pytest.raises(
        UnsupportedArchitectureError, match=f"^[^\n]*{words}[^\n]* give the unquantised model"
    ) as caught:
        check_architecture(config)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (gptq(checkpoint_format="marlin"), "GPTQ in the layout 'marlin'"),
        (gptq(is_marlin_format=True), "GPTQ in the layout 'gptq'"),
        (awq(version="gemv_fast"), "AWQ in the layout 'gemv_fast'"),
        (awq(backend="llm-awq"), "AWQ in the layout 'gemm'"),
    ],
)
def test_layouts_of_other_kernels_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=f"with {words}"):
        packing(settings)

"""Weights of four and eight bits that are floats: what a config says of their blocks, by the tool that wrote it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_NVFP4, _MXFP4, _FP8, _MXFP8 = "NVFP4", "MXFP4", "FP8", "MXFP8"
_WHOLE, _BY_ROW = (0, 0), (1, 0)
_MODELOPT = {  # by its name of the algorithm
    "FP8": (_FP8, _WHOLE),
    "FP8_PER_CHANNEL_PER_TOKEN": (_FP8, _BY_ROW),
    "FP8_PB_WO": (_FP8, (128, 128)),
    "MXFP8": (_MXFP8, (1, 32)),
    "NVFP4": (_NVFP4, (1, 16)),
    "W4A16_NVFP4": (_NVFP4, (1, 16)),
    "MXFP4": (_MXFP4, (1, 32)),
}
_COMPRESSED = {  # by its name of the layout: bits of a weight
    **{"float-quantized": (8, _FP8), "naive-quantized": (8, _FP8)},
    **{"mxfp8-quantized": (8, _MXFP8), "nvfp4-pack-quantized": (4, _NVFP4), "mxfp4-pack-quantized": (4, _MXFP4)},
}


_QUARK = {  # by its type, and by what has a scale
    **{("fp8_e4m3", "per_tensor"): (_FP8, _WHOLE), ("fp8_e4m3", "per_channel"): (_FP8, _BY_ROW)},
    ("fp4", "per_group"): (_MXFP4, (1, 32)),
}


@dataclass(frozen=True, slots=True)
class FloatScheme:
    """E4M3 of eight bits or E2M1 of four. block: (outputs, inputs) that share a scale, 0 for all of a matrix's."""

    name: str
    block: tuple[int, int]

    @property
    def is_mxfp4(self) -> bool:
        return self.name == _MXFP4

    @property
    def bits(self) -> int:
        return 4 if self.name.endswith("4") else 8


def fp8_scheme(settings: Mapping[str, Any]) -> FloatScheme | None:
    """Of "fp8", in blocks or with one scale for a matrix, and of FBGEMM, with one for an output; None where unknown."""
    if str(settings.get("fmt", "e4m3")).lower() not in ("e4m3", "float8_e4m3fn"):
        return None
    if settings.get("quant_method") == "fbgemm_fp8":
        return FloatScheme(_FP8, _BY_ROW)
    block = _block(settings.get("weight_block_size"))
    return None if block is None else FloatScheme(_FP8, block)


def modelopt_schemes(settings: Mapping[str, Any]) -> Iterator[tuple[str, FloatScheme | None]]:
    """By the name of each algorithm; None for one that is not read."""
    inner = settings.get("quantization")
    given: Mapping[str, Any] = inner if isinstance(inner, dict) else settings
    names = [str(given.get("quant_algo"))]
    if names == ["MIXED_PRECISION"]:
        layers = given.get("quantized_layers")
        of_layers = layers.values() if isinstance(layers, dict) else ()
        names = sorted({str(layer.get("quant_algo")) for layer in of_layers if isinstance(layer, dict)}) or names
    for name in names:
        yield name, FloatScheme(*_MODELOPT[name]) if name in _MODELOPT else None


def quark_schemes(settings: Mapping[str, Any]) -> Iterator[tuple[str, FloatScheme | None]]:
    """Of AMD Quark, by the type of weights, of all layers and of those that differ; None for one that is not read."""
    export, algorithms = settings.get("export"), settings.get("algo_config")
    form = export.get("weight_format", "real_quantized") if isinstance(export, dict) else "real_quantized"
    if form != "real_quantized" or "rotation" in str(algorithms):  # some of which turn activations too
        yield f"{form}, {algorithms}", None
    differing = (settings.get(key) for key in ("layer_quant_config", "layer_type_quant_config"))
    groups = [
        settings.get("global_quant_config"),
        *(own for each in differing if isinstance(each, dict) for own in each.values()),
    ]
    given = [group["weight"] for group in groups if isinstance(group, dict) and group.get("weight") is not None]
    for weight in given or ["no weights"]:
        yield f"{weight}", _quark_scheme(weight) if isinstance(weight, dict) else None


def _quark_scheme(weight: Mapping[str, Any]) -> FloatScheme | None:
    found = _QUARK.get((str(weight.get("dtype")), str(weight.get("qscheme"))))
    is_known = weight.get("dtype") != "fp4" or (weight.get("group_size"), weight.get("scale_format")) == (32, "e8m0")
    return FloatScheme(*found) if found and is_known else None


def compressed_float_scheme(weights: Mapping[str, Any], layout: object) -> FloatScheme | None:
    """Of a group of modules of compressed-tensors; None where its floats are not read."""
    bits, name = _COMPRESSED.get(str(layout), (0, ""))
    if weights.get("num_bits") != bits or weights.get("symmetric", True) is not True:
        return None
    size, strategy = weights.get("group_size"), weights.get("strategy")
    if name != _FP8:
        wanted = 16 if name == _NVFP4 else 32
        return FloatScheme(name, (1, wanted)) if size in (None, wanted) else None
    if strategy in ("group", "tensor_group"):
        return FloatScheme(name, (1, size)) if type(size) is int and size > 0 else None
    if strategy == "block":
        block = _block(weights.get("block_structure"))
        return None if block in (None, _WHOLE) else FloatScheme(name, block or _WHOLE)
    return FloatScheme(name, _BY_ROW) if strategy == "channel" else FloatScheme(name, _WHOLE)


def _block(given: object) -> tuple[int, int] | None:
    """Of a config; all of a matrix where it says nothing, None where it cannot be."""
    if given is None:
        return _WHOLE
    if not isinstance(given, list) or len(given) != 2 or not all(type(size) is int and size > 0 for size in given):
        return None
    return given[0], given[1]

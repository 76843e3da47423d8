"""Which tool quantised a folder's weights, as its config tells: a few formats are read, the rest refused by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reader_edge_export.sources.folder.folder_files import read_json
from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_export.sources.quantized.float_schemes import (
    FloatScheme,
    compressed_float_scheme,
    fp8_scheme,
    modelopt_schemes,
    quark_schemes,
)
from reader_edge_export.sources.quantized.mlx_schemes import mlx_schemes
from reader_edge_runtime.errors import UnsupportedArchitectureError

AWQ, GPTQ, COMPRESSED_TENSORS, MXFP4 = "awq", "gptq", "compressed-tensors", "mxfp4"
BITSANDBYTES, MLX = "bitsandbytes", "mlx"
_FP8, _FBGEMM, _MODELOPT, _QUARK = "fp8", "fbgemm_fp8", "modelopt", "quark"
_FLOAT_METHODS = (_FP8, _FBGEMM, _MODELOPT, _QUARK)
_READ = {
    **{AWQ: "AWQ", GPTQ: "GPTQ", COMPRESSED_TENSORS: "compressed-tensors", MXFP4: "MXFP4"},
    **{_FP8: "FP8", _FBGEMM: "FBGEMM", _MODELOPT: "ModelOpt", _QUARK: "Quark"},
    **{BITSANDBYTES: "bitsandbytes", MLX: "MLX"},
}
_IN_MXFP4 = ("gpt_oss",)  # model types whose makers store experts so
_CONFIG_KEYS = ("quantization_config", "compression_config", "quantization")  # the last is MLX's
_LOADED_IN = {4: "load_in_4bit", 8: "load_in_8bit"}  # by bits, of bitsandbytes
# Where config.json says nothing: of old tools, and of ModelOpt.
_FILES = {"quantize_config.json": GPTQ, "quant_config.json": AWQ, "hf_quant_config.json": _MODELOPT}
_FLOATS = ("F64", "F32", "F16", "BF16")
_PARTS = ("weight", "qweight", "weight_packed", "W_q")
# What people call what config.json gives as quant_method.
_OTHERS = {
    "aqlm": "AQLM",
    "auto-round": "AutoRound",
    "bitnet": "BitNet",
    "eetq": "EETQ",
    "exl2": "ExLlamaV2 (EXL2)",
    "exl3": "ExLlamaV3 (EXL3)",
    "fp_quant": "FP-Quant",
    "gguf": "GGUF, in a folder",
    "higgs": "HIGGS",
    "hqq": "HQQ",
    "marlin": "Marlin",
    "quanto": "Quanto",
    "spqr": "SpQR",
    "torchao": "torchao",
    "vptq": "VPTQ",
}
_READ_COMPRESSED = ("pack-quantized", "int-quantized", "naive-quantized")


@dataclass(frozen=True, slots=True)
class Quantization:
    """What a config says of quantised weights.

    method: a key of _READ. bits: of weights that are integers, 4 or 8. floats: of those that are FP8 or FP4.
    """

    method: str
    settings: Mapping[str, Any]
    bits: tuple[int, ...] = ()
    floats: tuple[FloatScheme, ...] = ()

    @property
    def is_in_mxfp4(self) -> bool:
        """Whether all matrices that were quantised can stay as they are, in the blocks of GGUF's MXFP4."""
        if self.method == MLX:
            return {scheme.mode for scheme in mlx_schemes(self.settings).values() if scheme} == {MXFP4}
        return bool(self.floats) and all(scheme.is_mxfp4 for scheme in self.floats)

    @property
    def weight_types(self) -> tuple[str, ...]:
        """What the weights are called in reports, coarsest first."""
        schemes = sorted(self.floats, key=lambda scheme: scheme.bits)
        names = [f"{bits} bit" for bits in self.bits] + list(dict.fromkeys(scheme.name for scheme in schemes))
        return tuple(name if self.method == _FP8 else f"{_READ[self.method]} {name}" for name in names)


def quantization_of(config: Mapping[str, Any]) -> Quantization | None:
    """How the weights that belong to a config.json are quantised; None where they are not.

    Raises UnsupportedArchitectureError, with the format's name and a way out, for what is not read.
    """
    settings = next((config[key] for key in _CONFIG_KEYS if config.get(key)), None)
    if settings is None:
        return None
    if not isinstance(settings, dict):
        raise _refusal(f"a tool that config.json describes as {settings!r:.80}")
    method = _method_of(settings, is_mlx="quantization" in config)
    if method not in _READ:
        raise _refusal(_OTHERS.get(method, f"{method!r:.80}"))
    if method == MXFP4 and config.get("model_type") not in _IN_MXFP4:
        raise _refusal("MXFP4")
    if method in _FLOAT_METHODS or (
        method == COMPRESSED_TENSORS and any(_is_float(scheme) for scheme, _ in _groups(settings))
    ):
        return Quantization(method, settings, floats=_float_schemes(method, settings))
    return Quantization(method, settings, _BITS_OF.get(method, partial(_bits_of_groups, method))(settings))


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what it says of the format of its weights."""
    return {key: value for key, value in config.items() if key not in _CONFIG_KEYS}


def _method_of(settings: Mapping[str, Any], is_mlx: bool) -> str:
    named = settings.get("quant_method", settings.get("method"))
    if isinstance(named, str):
        return named.lower().replace("_", "-") if named.lower() == "compressed_tensors" else named.lower()
    if any(settings.get(key) for key in _LOADED_IN.values()):
        return BITSANDBYTES
    if "config_groups" in settings:
        return COMPRESSED_TENSORS
    if "quant_algo" in settings or "producer" in settings:
        return "modelopt"
    return MLX if is_mlx or {"bits", "group_size"} <= settings.keys() else str(named)


def _bits_of_groups(method: str, settings: Mapping[str, Any]) -> tuple[int, ...]:
    """Of AWQ, GPTQ and compressed-tensors."""
    is_compressed = method == COMPRESSED_TENSORS
    schemes = [scheme for scheme, _ in compressed_schemes(settings)] if is_compressed else [settings]
    found: set[int] = set()
    for scheme in schemes:
        bits = scheme.get("num_bits", 8) if is_compressed else scheme.get("bits", scheme.get("w_bit"))
        if type(bits) is not int or bits not in (4, 8):
            raise _refusal(f"{_READ[method]} of {bits!r:.20} bits a weight")
        group_size = scheme.get("group_size", scheme.get("q_group_size"))
        if group_size is not None and (type(group_size) is not int or not (group_size == -1 or group_size > 0)):
            raise _refusal(f"{_READ[method]} in groups of {group_size!r:.20}")
        found.add(bits)
    return tuple(sorted(found))


def _bits_of_bitsandbytes(settings: Mapping[str, Any]) -> tuple[int, ...]:
    bits = tuple(bits for bits, key in _LOADED_IN.items() if settings.get(key))
    if len(bits) != 1:
        raise _refusal("bitsandbytes of neither 4 nor 8 bits, or of both")
    return bits


def _bits_of_mlx(settings: Mapping[str, Any]) -> tuple[int, ...]:
    schemes = mlx_schemes(settings)
    for path, scheme in schemes.items():
        if scheme is None:
            own = settings[path] if path else settings
            named = {key: own.get(key) for key in ("mode", "bits", "group_size")}
            raise _refusal(f"MLX as {named!r:.120}")
    return tuple(sorted({scheme.bits for scheme in schemes.values() if scheme is not None}))


_BITS_OF: dict[str, Callable[[Mapping[str, Any]], tuple[int, ...]]] = {
    **{MXFP4: lambda _: (4,), BITSANDBYTES: _bits_of_bitsandbytes, MLX: _bits_of_mlx}
}


def _float_schemes(method: str, settings: Mapping[str, Any]) -> tuple[FloatScheme, ...]:
    """Raises UnsupportedArchitectureError where one is not read."""
    if method in (_FP8, _FBGEMM):
        found = [(f"{_READ[method]} in blocks of {settings.get('weight_block_size')!r:.40}", fp8_scheme(settings))]
    elif method == _MODELOPT:
        found = [(f"NVIDIA ModelOpt as {name!r:.40}", scheme) for name, scheme in modelopt_schemes(settings)]
    elif method == _QUARK:
        found = [(f"AMD Quark as {name!r:.120}", scheme) for name, scheme in quark_schemes(settings)]
    else:
        found = [
            (_called(scheme, layout), compressed_float_scheme(scheme, layout) if _is_float(scheme) else None)
            for scheme, layout in _groups(settings)
        ]
    for called, scheme in found:
        if scheme is None:
            raise _refusal(called)
    return tuple(dict.fromkeys(scheme for _, scheme in found if scheme is not None))


def _is_float(scheme: Mapping[str, Any]) -> bool:
    return str(scheme.get("type", "int")).lower() == "float"


def _called(scheme: Mapping[str, Any], layout: object) -> str:
    kind = str(scheme.get("type", "int")).lower()
    return f"compressed-tensors as {layout!r:.40} ({kind!r:.20} of {scheme.get('num_bits')!r:.20} bits)"


def compressed_schemes(settings: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], object]]:
    """What each group of modules of compressed-tensors does to weights, and its format, where they are integers."""
    schemes = _groups(settings)
    for scheme, layout in schemes:
        if layout not in _READ_COMPRESSED or str(scheme.get("type", "int")).lower() != "int":
            raise _refusal(_called(scheme, layout))
    return schemes


def _groups(settings: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], object]]:
    sparsity, transform = settings.get("sparsity_config"), settings.get("transform_config")
    if isinstance(sparsity, dict) and sparsity.get("format", "dense") != "dense":
        raise _refusal(f"compressed-tensors as {sparsity['format']!r:.40}")
    if transform and transform != {"config_groups": {}}:
        raise _refusal("compressed-tensors with rotations (transform_config)")
    name = settings.get("format")
    groups = settings.get("config_groups")
    schemes = [
        (group["weights"], group.get("format") or name)
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict) and isinstance(group.get("weights"), dict)
    ]
    if not schemes:
        raise _refusal(f"compressed-tensors as {name!r:.40}")
    return schemes


def _refusal(called: str) -> UnsupportedArchitectureError:
    return UnsupportedArchitectureError(
        f"The weights were quantised with {called}, which is not read: give the unquantised model, a GGUF file of it, "
        "or one in FP8, AWQ, GPTQ, bitsandbytes, MLX or compressed-tensors of 4 or 8 bits."
    )


def with_quantization_config(
    config: dict[str, Any], folder: Path, tensors: Mapping[str, StoredTensor]
) -> dict[str, Any]:
    """The config, with the settings of quantised weights that old tools have in a file of their own.

    Raises UnsupportedArchitectureError where weights are no floats, and nothing says what they mean.
    """
    weights = [tensor for name, tensor in tensors.items() if name.rpartition(".")[2] in _PARTS]
    odd = [tensor for tensor in weights if tensor.dtype not in _FLOATS]
    if not odd or quantization_of(config) is not None:
        return config
    for name, method in _FILES.items():
        if (folder / name).exists():
            return config | {"quantization_config": {"quant_method": method, **read_json(folder / name)}}
    raise UnsupportedArchitectureError(
        f"'{folder}' holds {odd[0].name!r:.80} as {odd[0].dtype}, which some tool quantised, but its config does not "
        "say which: give the unquantised model, or fetch this one again with all its files."
    )

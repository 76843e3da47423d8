"""Quantised weights of which config.json says nothing: old tools have a file of their own for that."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reader_edge_export.sources.folder.json_file import read_json
from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_export.sources.quantized.formats import AWQ, GPTQ, quantization_of
from reader_edge_runtime.errors import UnsupportedArchitectureError

_FILES = {"quantize_config.json": GPTQ, "quant_config.json": AWQ}
_FLOATS = ("F64", "F32", "F16", "BF16")
_PARTS = ("weight", "qweight", "weight_packed", "W_q")


def with_settings(config: dict[str, Any], folder: Path, tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """The config, and what it leaves unsaid of quantised weights.

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

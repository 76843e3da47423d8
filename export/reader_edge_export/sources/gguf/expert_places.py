"""The tensors of experts in a GGUF file: which fill a parameter of all experts, and how an expert's rows lie in it."""

import re
from collections.abc import Collection

import numpy as np

from reader_edge_runtime.arrays import Int64Array

_PARAMETER = re.compile(r"model\.layers\.(\d+)\..*experts\.(gate_up_proj|up_proj|down_proj)(_bias)?")
_STORED = {
    **{"gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"), "down_proj": ("ffn_down_exps",)},
    "up_proj": ("ffn_up_exps",),  # of experts without a gate
}
_FUSED = "ffn_gate_up_exps"  # as converters may write them
# As Ollama's converter leaves those of Qwen 3 that a folder has one by one.
_APART, _APART_NAMES = ".mlp.experts.", {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_IN_TURN = "gpt-oss"  # has rows of gate and up in turn, and inputs first, in its modules


def is_of_experts(name: str) -> bool:
    """Whether a parameter holds the matrices of experts (X, J, K) or their biases (X, J)."""
    return _PARAMETER.fullmatch(name) is not None


def is_transposed(architecture: str, name: str) -> bool:
    """Whether a module has its experts' matrices inputs first, which files never have."""
    return architecture == _IN_TURN and is_of_experts(name) and not name.endswith("_bias")


def is_apart(stored: str) -> bool:
    """Whether a tensor holds a matrix (J, K) of one expert alone."""
    return _APART in stored


def expert_tensors(name: str, architecture: str, num_experts: int, present: Collection[str]) -> list[str]:
    """The names of tensors (X, J, ...) that fill a parameter of experts, in each expert one's rows below the other's.

    Those of one expert alone are in the order of experts, all gates in front of all ups. present: what the file has.
    """
    found = _PARAMETER.fullmatch(name)
    assert found is not None
    if found[2] in _APART_NAMES and f"blk.{found[1]}{_APART}0.{_APART_NAMES[found[2]][0]}.weight" in present:
        parts = [f"{expert}.{part}" for part in _APART_NAMES[found[2]] for expert in range(num_experts)]
        return [f"blk.{found[1]}{_APART}{part}.weight" for part in parts]
    kind = "bias" if found[3] else "weight"
    fused = f"blk.{found[1]}.{_FUSED}.{kind}"
    if found[2] == "gate_up_proj" and fused in present and architecture != _IN_TURN:
        return [fused]
    return [f"blk.{found[1]}.{stored}.{kind}" for stored in _STORED[found[2]]]


def expert_rows(architecture: str, name: str, num_rows: int) -> Int64Array | None:
    """Which of an expert's rows in the file each row is; None where they are in order. num_rows: of those in turn."""
    if architecture != _IN_TURN or "gate_up_proj" not in name:
        return None
    return np.arange(num_rows).reshape(2, -1).T.reshape(-1)

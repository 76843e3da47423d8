"""A LoRA in a GGUF file, as llama.cpp's convert_lora_to_gguf.py writes it: a tensor's name and .lora_a or .lora_b."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import numpy as np

from reader_edge_runtime.adapters.adapter import MERGE, MOST, Adapter, Change, StoredFactors
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import AdapterError
from reader_edge_runtime.untrusted.gguf_header import GgufHeader, GgufTensor, Value
from reader_edge_runtime.untrusted.plain_file import check_plain_file, unblocked

_DOWN, _UP = ".lora_a", ".lora_b"
_AGAIN = "fetch the adapter again"
# Architectures whose files rotate neighbouring values of a head, transformers its two halves.
PAIRED = (
    *("llama", "mistral3", "granite", "granitehybrid", "granitemoe", "smollm3", "arcee"),
    *("nemotron_h", "nemotron_h_moe"),
)
MULTIPLIED = ("falcon_h1",)  # model types whose weights converters multiply by factors of config.json
_OTHERWISE = {  # by model type: what converters call it, where that is not its own name
    **dict.fromkeys(("mistral", "mixtral", "internlm3"), "llama"),
    **{"ministral3": "mistral3", "phi": "phi2", "olmo3": "olmo2", "hunyuan_v1_dense": "hunyuan-dense"},
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), "deepseek2"),
    "granitemoehybrid": "granitehybrid",
}


def is_written_as(model_type: str, architecture: str) -> bool:
    """Whether files of a type's models, and of their adapters, have that architecture."""
    names = (model_type.removesuffix("_text"), architecture)
    first, second = (name.translate({ord(mark): None for mark in "_-"}) for name in names)
    return first == second or _OTHERWISE.get(model_type) == architecture


class Kind(Enum):
    """What converters write factors as, by the file's numbers."""

    F32 = 0
    F16 = 1
    Q8_0 = 8
    BF16 = 30


_KINDS = {0: (Kind.F32, 1, 4), 1: (Kind.F16, 1, 2), 8: (Kind.Q8_0, 32, 34), 30: (Kind.BF16, 1, 2)}


@dataclass(frozen=True, slots=True)
class GgufAdapter(Adapter):
    """changes: by tensors. architecture: llama.cpp's name of it."""

    architecture: str

    @classmethod
    def open(cls, path: Path) -> "GgufAdapter":
        """Raises AdapterError, or GgufError for a broken file."""
        check_plain_file(path, AdapterError, "give the file of an adapter")
        with open(path, "rb", opener=unblocked) as file:
            state = os.fstat(file.fileno())
            metadata, tensors = GgufHeader(path, file, _KINDS).read()
        for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
            if metadata.get(key) != wanted:
                raise _error(path, f"has the {key} {metadata.get(key)!r:.40}, where {wanted!r} is read", MERGE)
        if metadata.get("adapter.alora.invocation_tokens"):
            raise _error(path, "changes texts from certain tokens on alone (aLoRA)", "give another adapter")
        alpha = metadata.get("adapter.lora.alpha", 0.0)
        if not isinstance(alpha, float) or not 0 <= alpha <= MOST:
            raise _error(path, f"gives adapter.lora.alpha as {alpha!r:.40}", _AGAIN)
        base, architecture = (_text(metadata, f"general.{key}") for key in ("base_model.0.name", "architecture"))
        return cls(path, base, _changes(path, alpha, tensors, state), architecture)

    @property
    def files(self) -> list[Path]:
        return [self.path]


def _text(metadata: Mapping[str, Value], key: str) -> str:
    value = metadata.get(key)
    return value if isinstance(value, str) else ""


def _changes(
    path: Path, alpha: float, tensors: Mapping[str, GgufTensor[Kind]], state: os.stat_result
) -> dict[str, Change]:
    """alpha: over the rank, what a product is multiplied by; 0 for nothing."""
    for name in tensors:
        if not name.endswith((_UP, _DOWN)):
            raise _error(path, f"holds {name!r:.80}, which is no factor, and nothing else is read of adapters", MERGE)
    names = {name.removesuffix(_UP).removesuffix(_DOWN) for name in tensors}
    if not names:
        raise _error(path, "holds no factors", _AGAIN)
    changes = {}
    for name in sorted(names):
        for end in (_UP, _DOWN):
            if name + end not in tensors:
                raise _error(path, f"holds one factor of {name!r:.80} and lacks {end}", _AGAIN)
        up, down = tensors[name + _UP], tensors[name + _DOWN]
        scale = alpha / down.shape[0] if alpha else 1.0
        changes[name] = Change(up.shape, down.shape, None, partial(_read, up, down, scale, state))
    return changes


def _read(up: GgufTensor[Kind], down: GgufTensor[Kind], scale: float, state: os.stat_result) -> StoredFactors:
    return StoredFactors(_values(up, state) * np.float32(scale), _values(down, state))


def _values(tensor: GgufTensor[Kind], state: os.stat_result) -> Float32Array:
    """A whole tensor in fp32. Raises AdapterError where the file has changed."""
    with open(tensor.path, "rb", opener=unblocked) as file:
        file.seek(tensor.offset)
        data, now = file.read(tensor.num_bytes), os.fstat(file.fileno())
    is_same = (now.st_ino, now.st_size, now.st_mtime_ns) == (state.st_ino, state.st_size, state.st_mtime_ns)
    if not is_same or len(data) < tensor.num_bytes:
        raise _error(tensor.path, "changed while it was read", _AGAIN)
    with np.errstate(all="ignore"):  # hostile scales may be infinite
        return _dequantized(np.frombuffer(data, np.uint8), tensor.kind).reshape(tensor.shape)


def _dequantized(data: np.ndarray[tuple[int], np.dtype[np.uint8]], kind: Kind) -> Float32Array:
    if kind is Kind.Q8_0:
        blocks = data.reshape(-1, 34)
        scales = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
        return scales * blocks[:, 2:].view(np.int8)
    if kind is Kind.BF16:
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return data.view("<f4" if kind is Kind.F32 else "<f2").astype(np.float32)


def _error(path: Path, problem: str, remedy: str) -> AdapterError:
    return AdapterError(f"'{path}' {problem}: {remedy}.")

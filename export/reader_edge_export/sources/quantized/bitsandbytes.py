"""bitsandbytes, as transformers saves its linear layers: NF4 and FP4 in blocks of a whole matrix, and LLM.int8().

Four bits: weight, two codes a byte with the first in the high half, of whatever type `bnb_4bit_quant_storage` says;
weight.absmax, a scale for each `blocksize` values of the flattened matrix, fp32, or uint8 where it was quantised again
("double"): then weight.nested_quant_map has the 256 values of a code, weight.nested_absmax their scales, and the state
the number that is added to all; weight.quant_state.bitsandbytes__nf4 or __fp4, JSON. Products are rounded to the dtype
that the state names, as the library does. Eight bits: weight int8 (J, K) and SCB (J,), each row's largest value;
columns of outliers are stored like others, it is activations that are split.
Source: bitsandbytes/functional.py (QuantState, dequantize_4bit, int8_vectorwise_dequant) and csrc/cpu_ops.cpp.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import msgspec
import torch
from msgspec import Meta

from reader_edge_export.sources.quantized.packing import CHUNK_VALUES, FLOATS, Packing, Parts, Values, part, wrong_part
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.untrusted.untrusted_json import Figure, converted, decoded, one_of

_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
    *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_FP4 = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
_TABLES = {"nf4": torch.tensor(_NF4), "fp4": torch.tensor((*_FP4, *(-value for value in _FP4)))}
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_STORAGE_BYTES = {"U8": 1, "I8": 1, "F16": 2, "BF16": 2, "F32": 4}  # of a weight's type, which says nothing else
_STATES = tuple(f"weight.quant_state.bitsandbytes__{kind}" for kind in _TABLES)
_ABSMAX, _MAP = "weight.absmax", "weight.quant_map"
_NESTED_ABSMAX, _NESTED_MAP = "weight.nested_absmax", "weight.nested_quant_map"
_MAX_STATE_BYTES = 4096
_REMEDY = "fetch the model again, or give another one"
_BY_127 = 7.874015718698502e-3
_Block = Annotated[int, Meta(ge=2, le=1 << 16, multiple_of=2)]
_Side = Annotated[int, Meta(ge=1, lt=1 << 31)]


class _State(msgspec.Struct):
    """What a matrix's JSON says. shape: (J, K)."""

    quant_type: Annotated[str, one_of(*_TABLES)]
    blocksize: _Block
    dtype: Annotated[str, one_of(*_DTYPES)]
    shape: tuple[_Side, _Side]
    nested_blocksize: _Block = 256
    nested_dtype: Annotated[str, one_of("float32")] = "float32"
    nested_offset: Figure = 0.0


@dataclass(frozen=True, slots=True)
class _Blocks:
    """pairs: uint8 (ceil(J K / 2),). scales: fp32, of each `size` values of the flattened matrix (J, K)."""

    pairs: torch.Tensor
    table: torch.Tensor
    scales: torch.Tensor
    size: int
    dtype: torch.dtype

    def write_into(self, out: torch.Tensor) -> None:
        both = torch.stack((self.table.repeat_interleave(16), self.table.repeat(16)), dim=-1)  # by byte, (256, 2)
        flat, blocks_at_once = out.view(-1), max(1, CHUNK_VALUES // self.size)
        for first in range(0, len(self.scales), blocks_at_once):
            target = flat[first * self.size : (first + blocks_at_once) * self.size]
            pairs = self.pairs[first * self.size // 2 :][: -(-len(target) // 2)]
            scales = self.scales[first : first + blocks_at_once].repeat_interleave(self.size)
            target[:] = (both[pairs.int()].flatten()[: len(target)] * scales[: len(target)]).to(self.dtype)


class BitsandbytesFourBits(Packing):
    """NF4 and FP4. Values of a code are the library's own, which those in weight.quant_map must be."""

    parts = ("weight", _ABSMAX, _MAP, _NESTED_ABSMAX, _NESTED_MAP, *_STATES)
    markers = parts[1:]

    def shape_of(self, module: str, parts: Parts) -> tuple[int, int]:
        found = [name for name in _STATES if name in parts] or [_STATES[0]]
        (num_bytes,) = part(module, parts, found[0], ("U8",), 1)
        if len(found) > 1 or num_bytes > _MAX_STATE_BYTES:
            raise wrong_part(module, found[-1], f"a second state, or one of {num_bytes} bytes")
        state = _state(module, parts[found[0]].read())
        num_values = math.prod(state.shape)
        num_blocks = -(-num_values // state.blocksize)
        stored = part(module, parts, "weight", _STORAGE_BYTES)
        if math.prod(stored) * _STORAGE_BYTES[parts["weight"].dtype] != -(-num_values // 2):
            raise wrong_part(module, "weight", f"the shape {stored}")
        is_nested = _NESTED_ABSMAX in parts or _NESTED_MAP in parts
        wanted = {_ABSMAX: num_blocks, _MAP: 16}
        if is_nested:
            wanted |= {_NESTED_ABSMAX: -(-num_blocks // state.nested_blocksize), _NESTED_MAP: 256}
        for name, length in wanted.items():
            dtypes = ("U8",) if name == _ABSMAX and is_nested else FLOATS
            if part(module, parts, name, dtypes, 1) != (length,):
                raise wrong_part(module, name, f"the shape {parts[name].shape}")
        return state.shape

    def codes_of(self, module: str, shape: tuple[int, int], values: Values) -> _Blocks:
        state = _state(module, next(values[name] for name in _STATES if name in values))
        table, scales = _TABLES[state.quant_type], values[_ABSMAX]
        if not torch.allclose(values[_MAP].float(), table, atol=1e-6):
            raise wrong_part(module, _MAP, f"other values than those of {state.quant_type}")
        if _NESTED_MAP in values:
            by_block = values[_NESTED_ABSMAX].float().repeat_interleave(state.nested_blocksize)[: len(scales)]
            scales = values[_NESTED_MAP].float()[scales.int()] * by_block + torch.tensor(float(state.nested_offset))
        pairs = values["weight"].contiguous().view(torch.uint8).flatten()
        return _Blocks(pairs, table, scales.float(), state.blocksize, _DTYPES[state.dtype])


@dataclass(frozen=True, slots=True)
class _Rows:
    """codes: int8 (J, K). scales: (J,), by a 127th of which the library multiplies last."""

    codes: torch.Tensor
    scales: torch.Tensor

    def write_into(self, out: torch.Tensor) -> None:
        torch.mul(self.codes.float(), self.scales.float().reshape(-1, 1), out=out)
        out *= _BY_127


class BitsandbytesEightBits(Packing):
    """LLM.int8(). weight_format: 0 for rows; other layouts were those of GPUs, and are written no more."""

    parts = ("weight", "SCB", "weight_format")
    markers = ("SCB", "weight_format")

    def shape_of(self, module: str, parts: Parts) -> tuple[int, int]:
        num_rows, num_columns = part(module, parts, "weight", ("I8",))
        if part(module, parts, "SCB", FLOATS, None) not in ((num_rows,), (num_rows, 1)):
            raise wrong_part(module, "SCB", f"the shape {parts['SCB'].shape}")
        if "weight_format" in parts:
            size = part(module, parts, "weight_format", ("U8",), None)
            if size not in ((), (1,)) or parts["weight_format"].read().any():
                raise wrong_part(module, "weight_format", "another order than by rows")
        return num_rows, num_columns

    def codes_of(self, module: str, shape: tuple[int, int], values: Values) -> _Rows:
        return _Rows(values["weight"], values["SCB"])


def _state(module: str, text: torch.Tensor) -> _State:
    name = f"The quant_state of {module!r:.80}"
    return converted(decoded(bytes(text.numpy()), name, ExportError, _REMEDY), _State, name, ExportError, _REMEDY)

"""Cases of every native kernel, written to a folder for scripts/check_kernels, which runs in an emulator too.

    python -m tests.runtime.execution.native.kernel_cases FOLDER [PAST ...]

With PASTs, such as 32768: attention behind so many rows alone, of every kind of cache, with sinks and with a window.
A case is a graph of kernels, its inputs at the widest and what its definitions make of them here; GGUF products, whose
kernels have bits of their own, as the kernels of this processor have them.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.blocks.blocks import unpack_blocks
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.block_linear import gguf_linear, store_blocks
from reader_edge_export.operators.definitions import Int8Matrix, hadamard_row_linear, rotary_heads, swiglu
from reader_edge_export.operators.hadamard_linear import BlockMatrix, hadamard_block_linear
from reader_edge_export.quantize.hadamard import block_size, hadamard
from reader_edge_runtime.package.manifest import MASKED
from tests.expert_matrices import random_experts
from tests.gguf_files import random_rows
from tests.recurrent_trees import (
    Conv,
    DeltaSizes,
    Feed,
    Trees,
    build_delta,
    build_mamba2,
    conv_feed,
    delta_feed,
    delta_inputs,
    mamba2_feed,
    mamba2_inputs,
)
from tests.runtime.execution.native_operator import (
    EXACT,
    FORMS,
    Attention,
    Build,
    Operator,
    attention_feed,
    build_attention,
    cached_feed,
)

Array = npt.NDArray[np.generic]
Growth = Mapping[int, int]  # axes that grow with the width: a size is the width and so much more

WIDEST = 64
_NODES: Growth = {1: 0}


@dataclass(frozen=True, slots=True)
class Case:
    """A graph: the sizes of its inputs by name, what builds it, and what it is fed."""

    name: str
    sizes: Mapping[str, Sequence[int | str]]
    build: Build
    feed: Mapping[str, Array]
    inputs: Mapping[str, Growth]
    outputs: Sequence[Growth]
    attention: Attention = EXACT
    has_own_bits: bool = False

    def write(self, folder: Path) -> None:
        """The case in a folder of its own."""
        folder.mkdir(parents=True)
        operator = Operator(folder, self.sizes, self.build, self.attention)
        run = operator.run_native if self.has_own_bits else operator.run_definition
        np.savez(folder / "feed.npz", allow_pickle=False, **dict(self.feed))
        np.savez(folder / "expected.npz", *run(self.feed))
        growth = {"inputs": self.inputs, "outputs": self.outputs}
        (folder / "growth.json").write_text(json.dumps(growth), encoding="utf-8")
        (folder / "pure.onnx").unlink()


def write_cases(folder: Path, pasts: Sequence[int] = ()) -> None:
    """Every case in a folder of its own; with pasts, those of `long_cases`."""
    for case in long_cases(pasts) if pasts else cases():
        case.write(folder / case.name)


def cases() -> Iterator[Case]:
    """One for each kernel and shape."""
    rng = np.random.default_rng(0)
    for num_inputs, num_outputs in ((37, 5), (576, 40), (1536, 33)):
        for num_planes in (1, 2):
            build = _int8(num_inputs, num_outputs, num_planes, rng)
            yield _product(f"int8-{num_planes}-{num_inputs}", num_inputs, build)
        yield _product(f"int4-{num_inputs}", num_inputs, _int4(num_inputs, num_outputs, rng))
    for name in BLOCK_TYPES:
        yield _product(f"keep-{name}", 768, _keep(name, 768, 40, rng), has_own_bits=True)
    yield _product("swiglu", 2 * 100, lambda editor, values: [swiglu(editor, values[0])])
    yield _rotary(rng)
    yield from _recurrent(rng)
    yield from (_experts(form, rng) for form in ("int8", "int8-a16", "int4", *BLOCK_TYPES))
    for form in FORMS:
        for past, head_size, group_size in ((70, 64, 3), (40, 136, 1), (1100, 16, 1)):
            yield _attention(form, past, head_size, group_size, rng)
        yield _attention(form, 300, 64, 8, rng, has_sinks=True)


def long_cases(pasts: Sequence[int]) -> Iterator[Case]:
    """Attention behind each past."""
    rng = np.random.default_rng(0)
    for past in pasts:
        for form in FORMS:
            yield _attention(form, past, 64, 4, rng)
            yield _attention(form, past, 80, 3, rng, has_sinks=True)
            yield _attention(form, past, 64, 1, rng, window=1000)


def _product(name: str, num_inputs: int, build: Build, has_own_bits: bool = False) -> Case:
    """Of two sequences, and of one, whose passes have odd numbers of rows too."""
    rows = np.random.default_rng(num_inputs).standard_normal((3, WIDEST, num_inputs), np.float32)
    rows[0, 0] = 0
    rows[1, ::7] *= np.float32(1e-12)
    rows[1, 1::7, 0] *= np.float32(1e4)
    feed = {"two": rows[:2], "one": rows[2:]}
    sizes: dict[str, Sequence[int | str]] = {key: (len(feed[key]), "N", num_inputs) for key in feed}

    def build_both(editor: GraphEditor, inputs: Sequence[ir.Value]) -> Sequence[ir.Value]:
        return [*build(editor, inputs[:1]), *build(editor, inputs[1:])]

    growth = dict.fromkeys(feed, _NODES)
    return Case(name, sizes, build_both, feed, growth, [_NODES, _NODES], has_own_bits=has_own_bits)


def _int8(num_inputs: int, num_outputs: int, num_planes: int, rng: np.random.Generator) -> Build:
    values = rng.integers(-127, 128, (num_outputs, num_inputs)).astype(np.int8)
    arrays = (values, rng.random(num_outputs, np.float32), *_rotation(num_inputs, rng))

    def build(editor: GraphEditor, inputs: Sequence[ir.Value]) -> Sequence[ir.Value]:
        matrix = Int8Matrix(*(editor.constant(array, "constant") for array in arrays))
        return [hadamard_row_linear(editor, inputs[0], matrix, None, num_planes)]

    return build


def _int4(num_inputs: int, num_outputs: int, rng: np.random.Generator) -> Build:
    num_blocks = -(-num_inputs // 32)
    values = rng.integers(0, 256, (num_outputs, num_blocks, 16)).astype(np.uint8)
    block_scales = rng.integers(-15, 16, (num_outputs, num_blocks)).astype(np.int8)
    arrays = (values, block_scales, rng.random(num_outputs, np.float32), *_rotation(num_inputs, rng))

    def build(editor: GraphEditor, inputs: Sequence[ir.Value]) -> Sequence[ir.Value]:
        blocks = BlockMatrix(*(editor.constant(array, "constant") for array in arrays))
        return [hadamard_block_linear(editor, inputs[0], blocks, None)]

    return build


def _rotation(num_inputs: int, rng: np.random.Generator) -> tuple[Array, Array]:
    return rng.standard_normal(num_inputs, np.float32), hadamard(block_size(num_inputs))


def _keep(name: str, num_inputs: int, num_outputs: int, rng: np.random.Generator) -> Build:
    rows = random_rows(gguf.GGMLQuantizationType[name], (num_outputs, num_inputs), rng)
    blocks = unpack_blocks(BLOCK_TYPES[name], rows)
    return lambda editor, inputs: [gguf_linear(editor, inputs[0], store_blocks(editor, blocks, "matrix"))]


def _rotary(rng: np.random.Generator) -> Case:
    widths = {"qkv": (14 + 2 * 2) * 64, "cosines": 32, "sines": 32}
    feed = {name: rng.standard_normal((1, WIDEST, width), np.float32) for name, width in widths.items()}
    sizes: dict[str, Sequence[int | str]] = {name: ("B", "N", width) for name, width in widths.items()}

    def build(editor: GraphEditor, values: Sequence[ir.Value]) -> Sequence[ir.Value]:
        return rotary_heads(editor, values[0], values[1], values[2], 14, 2)

    return Case("rotary", sizes, build, feed, dict.fromkeys(widths, _NODES), [{2: 0}] * 3)


def _recurrent(rng: np.random.Generator) -> Iterator[Case]:
    """Two trees, a node of each kept, behind two pending rows of which one and both are replayed."""
    parents = np.array([[-1, *(rng.integers(0, node) for node in range(1, WIDEST))] for _ in range(2)])
    trees = Trees(parents, np.array([1, 1]), np.array([1, 2]), np.array([WIDEST] * 2))
    sizes, conv = DeltaSizes(2, 4, 24, 84), Conv.random(1500, 4)
    committed: Growth = {}
    feeds: list[tuple[str, Mapping[str, Sequence[int | str]], Build, Feed, Sequence[Growth]]] = [
        ("conv", conv.inputs(), conv.build, conv_feed(rng, conv, trees, 2), [_NODES, committed]),
        ("delta", delta_inputs(sizes), build_delta, delta_feed(rng, sizes, trees, 2), [_NODES, committed, _NODES]),
        ("scan", mamba2_inputs(sizes), build_mamba2, mamba2_feed(rng, sizes, trees, 2), [_NODES, committed, _NODES]),
    ]
    for name, inputs, build, feed, outputs in feeds:
        growth = {each: _NODES for each, kinds in inputs.items() if tuple(kinds)[1:2] == ("N",)}
        yield Case(f"tree-{name}", inputs, build, feed, growth, outputs)


def _experts(form: str, rng: np.random.Generator) -> Case:
    matrices = random_experts(form, 5, 40, 768)
    rows = rng.standard_normal((WIDEST, 768), np.float32)
    feed: dict[str, Array] = {"rows": rows, "experts": rng.integers(0, 5, WIDEST)}
    nodes: Growth = {0: 0}
    sizes: dict[str, Sequence[int | str]] = {"rows": ("R", 768), "experts": ("R",)}

    def build(editor: GraphEditor, inputs: Sequence[ir.Value]) -> Sequence[ir.Value]:
        return [matrices.product(editor, *inputs)]

    growth = dict.fromkeys(feed, nodes)
    return Case(f"experts-{form}", sizes, build, feed, growth, [nodes], has_own_bits=form in BLOCK_TYPES)


def _attention(
    form: Attention,
    past: int,
    head_size: int,
    group_size: int,
    rng: np.random.Generator,
    has_sinks: bool = False,
    window: int | None = None,
) -> Case:
    sizes, build = build_attention(head_size, 2, group_size, has_sinks)
    feed = cached_feed(attention_feed(rng, past, WIDEST, 2, group_size, head_size), form)
    if has_sinks:
        feed["sinks"] = rng.standard_normal(2 * group_size, np.float32)
    if window is not None:
        for node in range(WIDEST):
            feed["mask"][0, 0, node, : max(0, past + 1 + node - window)] = MASKED
    new: Growth = {2: 0}
    inputs: dict[str, Growth] = dict.fromkeys(("query", "key", "value"), new)
    inputs["mask"] = {2: 0, 3: past}
    cache: Growth = {2: past}
    kind = "integer" if form.is_quantized else "exact"
    name = f"attention-{kind}-{form.kv_dtype}-{past}-{head_size}"
    name += ("-sinks" if has_sinks else "") + (f"-window-{window}" if window else "")
    return Case(name, sizes, build, feed, inputs, [new, cache, cache], form)


if __name__ == "__main__":
    write_cases(Path(sys.argv[1]), [int(past) for past in sys.argv[2:]])

"""A package of a tiny model in which every kind of layer counts: recurrent ones of all states, heads of two sizes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from reader_edge_export.lowering.attention_lowering import lower_attention
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.definitions import OPERATOR_DOMAIN
from reader_edge_export.operators.recurrent_operators import (
    Recurrence,
    StateInputs,
    TreeInputs,
    tree_conv,
    tree_delta,
    tree_mamba2,
)
from reader_edge_export.trace.markers import MARKER_DOMAIN, TREE_ATTENTION
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import GRAPH_NAME, LOWERING_PROPERTY, TOKENIZER_NAME, Manifest, file_entry
from reader_edge_runtime.package.manifest_file import write_manifest
from reader_edge_runtime.package.model_package import ModelPackage
from tests.fake_target import make_manifest

HIDDEN, NUM_TAPS = 12, 4
KEY_HEADS, HEADS, KEY_SIZE, VALUE_SIZE = 1, 2, 4, 6
KEYS, VALUES = KEY_HEADS * KEY_SIZE, HEADS * VALUE_SIZE
CHANNELS = 2 * KEYS + VALUES
CONV = (NUM_TAPS - 1, CHANNELS)
LAYERS = (
    Layer.recurrent(
        {"conv": CONV, "delta": (HEADS, KEY_SIZE, VALUE_SIZE)}, {"conv": CHANNELS, "delta": KEYS + VALUES + 2 * HEADS}
    ),
    Layer.attention(1, 8),
    Layer.recurrent(
        {"conv": CONV, "mamba": (HEADS, KEY_SIZE, VALUE_SIZE)}, {"conv": CHANNELS, "mamba": KEYS + VALUES + HEADS}
    ),
    Layer.attention(2, 4),
    Layer.recurrent({"conv": (2, HIDDEN)}, {"conv": HIDDEN}),
)


def build_tiny_hybrid(folder: Path, vocab_size: int = 8, max_context: int = 1024) -> ModelPackage:
    """Random weights, whatever the folder; logits are far apart, so that few of them are near ties."""
    folder.mkdir()
    manifest, model = tiny_manifest(vocab_size, max_context), _Graph(vocab_size).model
    model.metadata_props[LOWERING_PROPERTY] = manifest.lowering_id
    ir.save(model, folder / GRAPH_NAME)
    (folder / TOKENIZER_NAME).write_bytes(b"{}")
    files = {name: file_entry(folder / name) for name in (GRAPH_NAME, TOKENIZER_NAME)}
    write_manifest(folder, replace(manifest, files=files))
    return ModelPackage.open(folder)


def tiny_manifest(vocab_size: int = 8, max_context: int = 1024) -> Manifest:
    return replace(make_manifest(vocab_size, max_context), architecture="qwen3_5_text", num_layers=5, layers=LAYERS)


class _Graph:
    """The model, made node by node."""

    def __init__(self, vocab_size: int) -> None:
        self._random = np.random.default_rng(0)
        integers = {"input_ids": ("B", "N"), "position_ids": ("B", "N"), "write_pos": ("B",), "logit_rows": ("B", "R")}
        integers |= {"parents": ("B", "N"), "num_kept": ("B",), "num_pending": ("B",)}
        inputs = [_value(name, sizes, ir.DataType.INT64) for name, sizes in integers.items()]
        inputs.append(_value("tree_mask", ("B", 1, "N", "M")))
        self.model = ir.Model(ir.Graph(inputs, [], nodes=[], opset_imports={"": 24}, name="hybrid"), ir_version=11)
        self._editor = GraphEditor(self.model)
        self._tree = TreeInputs(*map(self._editor.input, ("parents", "num_kept", "num_pending")))
        rows = self._embedded(vocab_size)
        for number, layer in enumerate(LAYERS):
            if layer.kind == "attention":
                added, size = self._attention(rows, number, layer), 2 * layer.num_kv_heads * layer.head_dim
            elif len(layer.states) == 1:
                added, size = self._conv(rows, number, NUM_TAPS - 1), HIDDEN
            else:
                added, size = self._recurrent(rows, number, "delta" in layer.states), VALUES
            rows = self._editor.op("Add", [rows, self._product(added, HIDDEN, size)])
        self._head(rows, vocab_size)
        self._editor.append()
        lower_attention(self._editor, "exact", False, "float32")
        self.model.graph.opset_imports.update({OPERATOR_DOMAIN: 1, "com.microsoft": 1})

    def _embedded(self, vocab_size: int) -> ir.Value:
        editor = self._editor
        table = editor.constant(self._numbers(vocab_size, HIDDEN), "embeddings")
        position = editor.cast(editor.input("position_ids"), ir.DataType.FLOAT)
        angles = editor.op("Mul", [editor.op("Unsqueeze", [position, editor.int64s(-1)]), editor.scalar(0.02)])
        places = editor.op("Mul", [editor.op("Tanh", [angles]), editor.constant(self._numbers(HIDDEN), "places")])
        return editor.op("Add", [editor.op("Gather", [table, editor.input("input_ids")]), places])

    def _attention(self, rows: ir.Value, number: int, layer: Layer) -> ir.Value:
        editor, heads, head_dim = self._editor, 2 * layer.num_kv_heads, layer.head_dim
        query, key, value = (
            editor.transpose(self._heads(self._product(rows, count * head_dim), count), 0, 2, 1, 3)
            for count in (heads, layer.num_kv_heads, layer.num_kv_heads)
        )
        past = [
            self._input(f"past_{kind}.{number}", ("B", layer.num_kv_heads, "S", head_dim)) for kind in ("key", "value")
        ]
        attributes = {"scale": head_dim**-0.5, "softcap": 0.0, "num_heads": heads}
        attributes |= {"kv_heads": layer.num_kv_heads, "head_dim": head_dim}
        inputs = [query, key, value, *past, editor.input("write_pos"), editor.input("tree_mask")]
        output, *present = editor.op_multi(TREE_ATTENTION, inputs, 3, attributes, domain=MARKER_DOMAIN)
        for kind, made in zip(("key", "value"), present, strict=True):
            self._output(f"present_{kind}.{number}", made, ("B", layer.num_kv_heads, "S", head_dim))
        return editor.op("Reshape", [editor.transpose(output, 0, 2, 1, 3), editor.int64s(0, 0, -1)])

    def _recurrent(self, rows: ir.Value, number: int, is_delta: bool) -> ir.Value:
        editor = self._editor
        mixed = editor.op("Tanh", [self._conv_of(self._product(rows, CHANNELS), number, NUM_TAPS)])
        query, key, value = editor.op_multi("Split", [mixed, editor.int64s(KEYS, KEYS, VALUES)], 3, {"axis": 2})
        query, key, value = (
            self._heads(each, heads) for each, heads in ((query, KEY_HEADS), (key, KEY_HEADS), (value, HEADS))
        )
        key = editor.op("Mul", [key, editor.scalar(0.5)])
        gate = editor.op("Sigmoid", [self._product(rows, HEADS)])
        if is_delta:
            beta = editor.op("Sigmoid", [self._product(rows, HEADS)])
            states = self._state(number, "delta")
            found = tree_delta(editor, query, key, value, editor.op("Neg", [gate]), beta, self._tree, states)
        else:
            rates, passed = (editor.constant(self._numbers(HEADS), name) for name in ("rates", "passed"))
            rates = editor.op("Neg", [editor.op("Abs", [rates])])
            states = self._state(number, "mamba")
            found = tree_mamba2(editor, value, gate, rates, key, query, passed, self._tree, states)
        self._keep(number, "delta" if is_delta else "mamba", found)
        return editor.op("Reshape", [found.output, editor.int64s(0, 0, -1)])

    def _conv(self, rows: ir.Value, number: int, num_taps: int) -> ir.Value:
        gate = self._editor.op("Tanh", [self._product(rows, HIDDEN)])
        return self._editor.op("Mul", [gate, self._conv_of(self._product(rows, HIDDEN), number, num_taps)])

    def _conv_of(self, rows: ir.Value, number: int, num_taps: int) -> ir.Value:
        num_channels = LAYERS[number].states["conv"][1]
        weight = self._editor.constant(self._numbers(num_channels, num_taps), "taps")
        found = tree_conv(self._editor, rows, weight, None, self._tree, self._state(number, "conv"))
        self._keep(number, "conv", found)
        return found.output

    def _state(self, number: int, kind: str) -> StateInputs:
        layer = LAYERS[number]
        state = self._input(f"state_{kind}.{number}", ("B", *layer.states[kind]))
        return StateInputs(state, self._input(f"pending_{kind}.{number}", ("B", "P", layer.capsules[kind])))

    def _keep(self, number: int, kind: str, found: Recurrence) -> None:
        layer = LAYERS[number]
        self._output(f"present_{kind}.{number}", found.present, ("B", *layer.states[kind]))
        self._output(f"capsule_{kind}.{number}", found.capsules, ("B", "N", layer.capsules[kind]))

    def _head(self, rows: ir.Value, vocab_size: int) -> None:
        editor = self._editor
        nodes = editor.op("Unsqueeze", [editor.input("logit_rows"), editor.int64s(-1)], dtype=ir.DataType.INT64)
        wanted = editor.op("GatherND", [rows, nodes], {"batch_dims": 1})
        logits = editor.op("Mul", [self._product(editor.op("Tanh", [wanted]), vocab_size), editor.scalar(3.0)])
        top_logits, top_ids = editor.op_multi("TopK", [logits, editor.int64s(4)], 2)
        top_ids.dtype = ir.DataType.INT64
        self._output("logits", logits, ("B", "R", vocab_size))
        self._output("top_ids", top_ids, ("B", "R", 4))
        self._output("top_logits", top_logits, ("B", "R", 4))

    def _product(self, rows: ir.Value, num_outputs: int, num_inputs: int = HIDDEN) -> ir.Value:
        """By a random matrix."""
        matrix = self._numbers(num_inputs, num_outputs) / np.float32(num_inputs**0.5)
        return self._editor.op("MatMul", [rows, self._editor.constant(matrix, "matrix")])

    def _numbers(self, *sizes: int) -> np.ndarray:
        return self._random.standard_normal(sizes).astype(np.float32)

    def _heads(self, rows: ir.Value, num_heads: int) -> ir.Value:
        return self._editor.op("Reshape", [rows, self._editor.int64s(0, 0, num_heads, -1)])

    def _input(self, name: str, sizes: Sequence[int | str]) -> ir.Value:
        value = _value(name, sizes)
        self.model.graph.inputs.append(value)
        return value

    def _output(self, name: str, value: ir.Value, sizes: Sequence[int | str]) -> None:
        value.name, value.shape = name, ir.Shape(sizes)
        self.model.graph.outputs.append(value)


def _value(name: str, sizes: Sequence[int | str], dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(sizes), type=ir.TensorType(dtype))

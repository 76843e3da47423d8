"""Replace nodes of an ONNX graph, one subgraph at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.onnx_graph.weight_file import TensorSpec, Values, WeightFile

Inputs = Sequence[ir.Value | None]
Attributes = Mapping[str, int | float | str | Sequence[int]]

_NONE: Attributes = {}
_FLOAT = ir.DataType.FLOAT
_MAX_SHARED_ELEMENTS = 64
_MIN_WRITTEN_BYTES = 1 << 14


class GraphEditor:
    """Nodes made with `op` wait until they are inserted; small constants with the same contents are one initializer."""

    def __init__(self, model: ir.Model, weight_file: WeightFile | None = None) -> None:
        """weight_file: where large constants go as soon as they are made; None keeps them in memory."""
        self.model = model
        self._weight_file = weight_file
        self.graph = model.graph
        self._pending: list[ir.Node] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._num_constants = 0

    def op(
        self,
        op_type: str,
        inputs: Inputs,
        attributes: Attributes = _NONE,
        *,
        domain: str = "",
        overload: str = "",
        dtype: ir.DataType = _FLOAT,
    ) -> ir.Value:
        """A new node's only output, of type `dtype`. overload: which of an operator's definitions."""
        output = self.op_multi(op_type, inputs, 1, attributes, domain=domain, overload=overload)[0]
        output.dtype = dtype
        return output

    def op_multi(
        self,
        op_type: str,
        inputs: Inputs,
        num_outputs: int,
        attributes: Attributes = _NONE,
        *,
        domain: str = "",
        overload: str = "",
    ) -> Sequence[ir.Value]:
        """A new node's outputs, in fp32."""
        attrs = ir.convenience.convert_attributes(attributes)
        node = ir.Node(domain, op_type, inputs, attributes=attrs, num_outputs=num_outputs, overload=overload)
        for output in node.outputs:
            output.dtype = _FLOAT
        self._pending.append(node)
        if domain:
            self.graph.opset_imports[domain] = 1
        return node.outputs

    def input(self, name: str) -> ir.Value:
        return next(value for value in self.graph.inputs if value.name == name)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        return self.op("Cast", [value], {"to": int(dtype)}, dtype=dtype)

    def transpose(self, value: ir.Value, *axes: int) -> ir.Value:
        return self.op("Transpose", [value], {"perm": axes}, dtype=value.dtype or _FLOAT)

    def constant(self, array: npt.NDArray[np.generic], name: str) -> ir.Value:
        """An initializer; `name` is made unique."""
        is_small = array.size <= _MAX_SHARED_ELEMENTS
        key = (array.dtype.str, array.shape, array.tobytes() if is_small else b"")
        known = self._constants.get(key)
        if known is not None and known.is_initializer():  # tidying removes those that nobody reads
            return known
        name = self._unique(name)
        tensor: ir.Tensor[Any] | ir.ExternalTensor = ir.Tensor(array, name=name)
        if self._weight_file is not None and array.nbytes >= _MIN_WRITTEN_BYTES:
            tensor = self._weight_file.add(array, tensor.dtype, name)
        value = self.initializer(tensor)
        if is_small:
            self._constants[key] = value
        return value

    def matrix(self, parameters: Sequence[str], specs: Sequence[TensorSpec], values: Values) -> list[ir.Value]:
        """The initializers of a matrix that is made of these parameters; the specs' names are made unique.

        values: of the specs, whole or in parts; not called where an export that was killed has written them.
        """
        specs = [replace(spec, name=self._unique(spec.name)) for spec in specs]
        if self._weight_file is not None:
            return [self.initializer(tensor) for tensor in self._weight_file.add_matrix(parameters, specs, values)]
        wholes = (each if isinstance(each, np.ndarray) else np.concatenate(list(each)) for each in values())
        arrays = zip(wholes, specs, strict=True)
        return [self.initializer(ir.Tensor(array, name=spec.name)) for array, spec in arrays]

    def initializer(self, tensor: ir.TensorProtocol) -> ir.Value:
        """A tensor of the graph, by its own name."""
        value = ir.Value(name=tensor.name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype))
        value.const_value = tensor
        self.graph.register_initializer(value)
        return value

    def int64s(self, *values: int) -> ir.Value:
        """An int64 vector."""
        return self.constant(np.array(values, np.int64), "axes")

    def scalar(self, value: float) -> ir.Value:
        """A float32 scalar."""
        return self.constant(np.array(value, np.float32), "scalar")

    def size_of(self, value: ir.Value, axis: int) -> ir.Value:
        """One size of a tensor's shape, int64 (1,)."""
        return self.op("Shape", [value], {"start": axis, "end": axis + 1}, dtype=ir.DataType.INT64)

    def _unique(self, name: str) -> str:
        self._num_constants += 1
        return f"{name}.{self._num_constants}"

    def insert_before(self, node: ir.Node) -> None:
        """Put the waiting nodes before `node`."""
        self.graph.insert_before(node, self._pending)
        self._pending = []

    def insert_after(self, node: ir.Node) -> None:
        """Put the waiting nodes after `node`."""
        self.graph.insert_after(node, self._pending)
        self._pending = []

    def append(self) -> None:
        """Put the waiting nodes at the end of the graph."""
        self.graph.extend(self._pending)
        self._pending = []

    def replace(self, node: ir.Node, outputs: Sequence[ir.Value]) -> None:
        """Put the waiting nodes in the place of `node`, whose outputs become `outputs`, names included."""
        self.insert_before(node)
        for old, new in zip(node.outputs, outputs, strict=True):
            name = old.name
            new.shape, new.type = old.shape, old.type
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
            old.name = f"{name}.replaced"
            new.name = name
        self.graph.remove(node, safe=True)


def weight_of(value: ir.Value | None) -> npt.NDArray[np.generic] | None:
    """The array behind an initializer, or None for anything computed, and for the source's matrices."""
    if value is None or value.const_value is None or isinstance(value.const_value, ir.LazyTensor):
        return None
    return value.const_value.numpy()


def sizes_of(value: ir.Value | None) -> list[int | str | None] | None:
    """Numbers, names of sizes that are free, None for others; None where not even the number of axes is known."""
    if value is None or value.shape is None:
        return None
    return [size if isinstance(size, int) else size.value for size in value.shape]


def constant_shape(value: ir.Value) -> tuple[int, ...]:
    """Sizes of an initializer."""
    assert value.const_value is not None
    return tuple(value.const_value.shape.numpy())

"""Markers as a trace leaves them: nodes of its graph, whose values are never looked at, only their shapes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from reader_edge_export.trace.markers import MARKER_DOMAIN


class Outputs(NamedTuple):
    """A marker's outputs by its inputs. made: while it is traced. types: in the graph, None where nothing is known."""

    made: Callable[..., tuple[torch.Tensor, ...]]
    types: Callable[..., tuple[Any, ...]]

    @classmethod
    def like(cls, *numbers: int) -> "Outputs":
        """Outputs of the shapes of these inputs."""
        return cls(
            lambda *inputs: tuple(inputs[number].clone() for number in numbers),
            lambda *inputs: tuple(inputs[number].type() for number in numbers),
        )

    @classmethod
    def product(cls, size: int) -> "Outputs":
        """One output: rows of so many numbers in place of those of a row."""
        return cls(lambda rows: (torch.zeros(*rows.shape[:-1], size),), lambda rows: (_sized(rows, -1, size),))

    @classmethod
    def looked_up(cls, size: int) -> "Outputs":
        """One output: so many numbers for each id."""
        return cls(lambda ids: (torch.zeros(*ids.shape, size),), lambda ids: (_sized(ids, 0, size),))

    @classmethod
    def chosen(cls, *sizes: int | None) -> "Outputs":
        """Rows of the first input for each number of the second, of these sizes in the graph."""
        return cls(
            lambda rows, numbers, *_: (rows.new_zeros(*numbers.shape, sizes[-1]),),
            lambda rows, *_: (rows.type().with_sizes([*sizes]),),
        )


def mark(kind: str, outputs: Outputs, *inputs: torch.Tensor, **attributes: float | str) -> tuple[torch.Tensor, ...]:
    """Leave a marker. attributes: named as torch.onnx wants them, with their types behind."""
    return _apply(kind, attributes, outputs, *inputs)


class _Marker(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kind: str, attributes: dict[str, Any], outputs: Outputs, *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return outputs.made(*inputs)

    @staticmethod
    def symbolic(g: Any, kind: str, attributes: dict[str, Any], outputs: Outputs, *inputs: Any) -> Any:
        types = outputs.types(*inputs)
        values = g.op(f"{MARKER_DOMAIN}::{kind}", *inputs, **attributes, outputs=len(types))
        for value, each in zip(values if len(types) > 1 else (values,), types, strict=True):
            if each is not None:
                value.setType(each)
        return values


_apply: Callable[..., tuple[torch.Tensor, ...]] = _Marker.apply


def _sized(value: Any, num_more: int, size: int) -> Any:
    """The type of so many axes more than a value's and, behind them, one of this size."""
    rank = value.type().dim()
    return (
        None if rank is None else value.type().with_dtype(torch.float32).with_sizes([None] * (rank + num_more) + [size])
    )

"""Gradients at what a layer reads beside its hidden states: an input of its own, keys and values of another layer.

Gemma 4 has both. What layers read of each other is handed from the last to the first, as hidden states are.
"""

from typing import Any

import torch

from reader_edge_export.sources.layered_model import LayeredModel, Text

_OWN, _SHARED = "per_layer_input", "shared_kv_states"  # arguments of layers


class SideGradients:
    """Of one text. inputs: by layer, gradients at the inputs of their own."""

    def __init__(self) -> None:
        self.inputs: dict[int, torch.Tensor] = {}
        self._owed: dict[str, tuple[torch.Tensor, ...]] = {}  # by kind of layer, at its shared keys and values

    def backward(self, model: LayeredModel, index: int, text: Text, gradient: torch.Tensor) -> None:
        """Take the gradient at a layer's output back to its inputs; layers are gone through from the last one on.

        The layer's weights must be there, and the text's hidden states be a leaf.
        """
        arguments = text.arguments[index]
        shared: Any = arguments.get(_SHARED, {})
        read = {kind: tuple(map(_leaf, kept)) for kind, kept in shared.items()}
        shared.update(read)
        if arguments.get(_OWN) is not None:
            arguments[_OWN] = _leaf(arguments[_OWN])
        with torch.enable_grad():
            made, gradients = [model.run_layer(index, text)], [gradient]
            for kind, kept in shared.items():
                if kept is not read.get(kind) and kind in self._owed:  # written by this layer
                    made += kept
                    gradients += self._owed.pop(kind)
            torch.autograd.backward(made, gradients)
        for kind, kept in read.items():
            if shared[kind] is kept and kept[0].grad is not None:
                self._owe(kind, [each.grad for each in kept])
            shared[kind] = tuple(each.detach() for each in shared[kind])
        if arguments.get(_OWN) is not None:
            self.inputs[index] = arguments[_OWN].grad

    def _owe(self, kind: str, gradients: Any) -> None:
        before = self._owed.get(kind)
        self._owed[kind] = tuple(gradients if before is None else map(torch.add, before, gradients))


def own_input(arguments: dict[str, Any]) -> torch.Tensor | None:
    """What a layer that is called with these arguments has as an input of its own."""
    given: torch.Tensor | None = arguments.get(_OWN)
    return given


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()

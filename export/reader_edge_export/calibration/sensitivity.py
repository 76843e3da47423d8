"""Sensitivity of a model's next-token loss to the outputs of its matrices, from gradients.

The KL divergence that small errors e of an output bring is e^2 / 2 times the mean square of the gradient there of the
log probability of a token that the model itself draws (Fisher information).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from reader_edge_export.calibration.calibrate import matrix_sizes, products_of
from reader_edge_export.calibration.calibration import Calibration, OutputGradients
from reader_edge_export.sources.layered_model import LayeredModel, Text
from reader_edge_export.sources.source_model import SourceModel, check_finite

_OWN, _SHARED = "per_layer_input", "shared_kv_states"  # arguments of layers
# A tenth of what calibration takes, gradients included; the order of matrices hardly changes with more.
_MAX_TOKEN_PARAMETERS = 125_000_000_000
_MIN_TOKENS = 250
_LENGTH = 128  # of each text: its logits and their gradients are held at once


class SideGradients:
    """Gradients of one text at what layers read beside hidden states: own inputs, keys and values of others (Gemma 4).

    inputs: by layer, gradients at the inputs of their own.
    """

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
                gradients, before = [each.grad for each in kept], self._owed.get(kind)
                self._owed[kind] = tuple(gradients if before is None else map(torch.add, before, gradients))
            shared[kind] = tuple(each.detach() for each in shared[kind])
        if arguments.get(_OWN) is not None:
            self.inputs[index] = arguments[_OWN].grad


def own_input(arguments: dict[str, Any]) -> torch.Tensor | None:
    """What a layer that is called with these arguments has as an input of its own."""
    given: torch.Tensor | None = arguments.get(_OWN)
    return given


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()


def max_sensitivity_tokens(num_parameters: int) -> int:
    """How many tokens a model of this size is measured on, at most."""
    return max(_MIN_TOKENS, _MAX_TOKEN_PARAMETERS // num_parameters)


def measure_sensitivity(model: LayeredModel, sequences: Sequence[list[int]], calibration: Calibration) -> None:
    """Add to a calibration the gradients of all matrices, on the beginnings of texts, from the last layer to the first.

    The embedding (V, E) is among them: a lookup is its product with a row of one.
    """
    left = max_sensitivity_tokens(model.source.num_parameters)
    parts = []
    for token_ids in sequences:
        parts.append(token_ids[: min(_LENGTH, left)])
        left -= len(parts[-1])
    texts = model.begin([part for part in parts if part])
    inputs: list[list[torch.Tensor]] = []
    for _ in model.walk(texts):
        inputs.append([text.hidden for text in texts])
    gradients = _behind_layers(model, texts, calibration)
    sides = [SideGradients() for _ in texts]
    for index in reversed(range(len(model.layers))):
        layer = model.layers[index]
        with model.source.filled([layer]), _counted(products_of([layer], model.source), calibration):
            for place, text in enumerate(texts):
                text.hidden = inputs[index][place].detach().requires_grad_()
                sides[place].backward(model, index, text, gradients[place])
                assert text.hidden.grad is not None
                gradients[place] = text.hidden.grad
        model.advance(1 / len(model.layers))
    _count_embeddings(model, texts, gradients, sides, calibration)


def _behind_layers(model: LayeredModel, texts: Sequence[Text], calibration: Calibration) -> list[torch.Tensor]:
    """Gradients at the last layer's outputs of the log probability of a token drawn after each of a text's."""
    generator = torch.Generator().manual_seed(0)
    gradients = []
    *between, head = model.last_modules
    products = {**products_of(between, model.source), head: model.source.names[id(model.head.weight)]}
    with model.source.filled(model.last_modules), _counted(products, calibration):
        for text in texts:
            text.hidden = text.hidden.detach().requires_grad_()
            with torch.enable_grad():
                logits = model.head_logits(text)
                check_finite(logits)
                gradient = logits.detach().softmax(dim=-1)
                drawn = torch.multinomial(gradient, 1, generator=generator)
                gradient.scatter_add_(1, drawn, torch.full(drawn.shape, -1.0))
                logits.backward(gradient)
            assert text.hidden.grad is not None
            gradients.append(text.hidden.grad)
    return gradients


def _count_embeddings(
    model: LayeredModel,
    texts: Sequence[Text],
    gradients: Sequence[torch.Tensor],
    sides: Sequence[SideGradients],
    calibration: Calibration,
) -> None:
    embedding: Any = model.source.skeleton.get_input_embeddings()
    name = model.source.names[id(embedding.weight)]
    counted = calibration.gradients_for(name, embedding.weight.shape[1])
    if name == model.source.names[id(model.head.weight)]:
        counted = calibration.gradients_for(embedding_of(name), embedding.weight.shape[1])
    products = products_of(model.outer_modules, model.source)
    with model.filled_outer_modules(), _counted_rows(embedding, counted), _counted(products, calibration):
        for text, gradient, side in zip(texts, gradients, sides, strict=True):
            read: dict[int, torch.Tensor] = {}

            def note(
                index: int, hidden: torch.Tensor, arguments: dict[str, Any], read: dict[int, torch.Tensor] = read
            ) -> torch.Tensor:
                read.setdefault(-1, hidden)  # by the first layer
                if (own := own_input(arguments)) is not None:
                    read[index] = own
                return hidden

            with torch.enable_grad():
                model.embed(text, note)
                at = {-1: gradient, **side.inputs}
                torch.autograd.backward(list(read.values()), [at[place] for place in read])


def gradient_sizes(source: SourceModel) -> dict[str, int]:
    """How many gradients are counted, by the names of what they are of."""
    sizes = {name: num_outputs for name, (_, num_outputs) in matrix_sizes(source).items()}
    embedding: Any = source.skeleton.get_input_embeddings()
    name = source.names[id(embedding.weight)]
    return sizes | {embedding_of(name) if name in sizes else name: embedding.weight.shape[1]}


def embedding_of(head: str) -> str:
    """What gradients of embeddings that are the head's own matrix are known by."""
    return f"{head}, looked up"


@contextmanager
def _counted(products: Mapping[Any, str], calibration: Calibration) -> Iterator[None]:
    """While entered, gradients of the products' outputs are counted, and none of the weights'."""
    with ExitStack() as stack:
        for module, name in products.items():
            num_outputs = module.weight.shape[1 if isinstance(module, Conv1D) else 0]
            hook = module.register_forward_hook(_counting(calibration.gradients_for(name, num_outputs)))
            stack.callback(hook.remove)
        yield


def _counting(gradients: OutputGradients) -> Callable[..., None]:
    def count(_module: torch.nn.Module, _inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        output.register_hook(lambda gradient: gradients.add(gradient.flatten(end_dim=-2)))

    return count


@contextmanager
def _counted_rows(embedding: Any, gradients: OutputGradients) -> Iterator[None]:
    """While entered, gradients of the rows that an embedding looks up are counted."""

    def count(module: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        rows = output.detach().requires_grad_()
        scale = (
            rows.detach().norm() / torch.nn.functional.embedding(inputs[0], module.weight).norm()
        )  # Gemma 3 multiplies what it has looked up
        rows.register_hook(lambda gradient: gradients.add(gradient.flatten(end_dim=-2) * scale))
        return rows

    hook = embedding.register_forward_hook(count)
    try:
        yield
    finally:
        hook.remove()

"""A source model run one layer at a time, so that the weights of one layer are in memory, whatever the model's size.

The modules are those of transformers. What surrounds its layers is run once with layers that only note what they are
called with; then each layer gets its weights, and all texts go through it.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from reader_edge_export.progress import Advance, unseen
from reader_edge_export.sources.source_model import SourceModel, check_finite
from reader_edge_runtime.errors import UnsupportedArchitectureError

_IN_TUPLES = ("falcon_h1",)  # model types whose layers return their hidden states in a tuple of one
_BEHIND_LAYERS = ("altup_unembed_projections",)  # modules beside the layers that read what the last one makes
_ROUNDING = 1e-6  # of products in fp32, by the largest score
Layer = torch.nn.Module
LayerCall = Callable[[int, torch.Tensor, dict[str, Any]], torch.Tensor]


def best(scores: Tensor, k: int, dim: int = -1) -> tuple[Tensor, Tensor]:
    """scores (..., X) -> the best of each row and their places (..., k), the first of those that tie for the last.

    dim: of the scores, the last.
    """
    assert dim in (-1, scores.ndim - 1)
    last = scores.topk(k).values[..., -1:]
    magnitudes = scores.abs().where(scores.isfinite(), 0)  # of experts in groups that are left out they are not
    is_alike = (scores - last).abs() <= _ROUNDING * magnitudes.amax(-1, keepdim=True)
    places = torch.where(is_alike, last, scores).sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return scores.gather(-1, places), places


class SteadyTopk(TorchFunctionMode):
    """While entered, the topk of modules is `best`, as packages choose: PyTorch promises no order of ties.

    Its products may also give two equal rows of a router scores that differ in the last bits.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if function not in (torch.topk, Tensor.topk):
            return function(*args, **named)
        named.pop("sorted", None)  # they always are
        return best(*args, **named)


@dataclass(slots=True)
class Text:
    """A text on its way through the layers.

    hidden: what the next layer reads, (1, N, E), or (A, 1, N, E) of A versions of it (Gemma 3n). arguments: what each
    layer is called with besides.
    """

    token_ids: list[int]
    hidden: torch.Tensor
    arguments: list[dict[str, Any]] = field(default_factory=list)


class LayeredModel:
    """advance: gets walks through the layers, parts of one."""

    def __init__(self, source: SourceModel, advance: Advance = unseen) -> None:
        self.source = source
        self.advance = advance
        self._model = source.skeleton
        self._base, self._list = _base_of(self._model)
        self.layers: list[Layer] = list(self._list)
        self.head = self._model.get_output_embeddings()
        self._is_in_tuples = self._model.config.model_type in _IN_TUPLES

    def begin(self, sequences: Sequence[list[int]]) -> list[Text]:
        """Texts in front of the first layer."""
        texts: list[Text] = []
        with self.source.filled(self.outer_modules), torch.no_grad():
            for token_ids in sequences:
                text = Text(token_ids, torch.empty(0))
                self._around_layers(self._noting(text), input_ids=torch.tensor([token_ids]))
                texts.append(text)
        return texts

    def walk(self, texts: Sequence[Text]) -> Iterator[int]:
        """Take the texts through all layers. Yields the number of each when its weights are there, and then runs it."""
        for index, layer in enumerate(self.layers):
            with self.source.filled([layer]):
                yield index
                with torch.no_grad():
                    for text in texts:
                        text.hidden = self.run_layer(index, text)
            for text in texts:
                check_finite(text.hidden)
            self.advance(1 / len(self.layers))

    def run_layer(self, index: int, text: Text) -> torch.Tensor:
        """What a layer, whose weights are there, makes of a text's hidden states, of the same shape."""
        with SteadyTopk():
            hidden: Any = self.layers[index](text.hidden, **text.arguments[index])
        return hidden[0] if self._is_in_tuples else hidden  # type: ignore[no-any-return]

    def head_logits(self, text: Text) -> torch.Tensor:
        """Logits (N, V) of a text behind the last layer; the weights of `last_modules` must be there."""
        ids = _no_ids(text)
        logits: torch.Tensor = self._around_layers(lambda *_: text.hidden, self._model, input_ids=ids).logits[0]
        return logits

    def head_inputs(self, text: Text) -> torch.Tensor:
        """What the head reads, (1, N, E); what lies between the layers and it must be there."""
        ids = _no_ids(text)
        rows: torch.Tensor = self._around_layers(lambda *_: text.hidden, input_ids=ids).last_hidden_state
        return rows

    def logits(self, sequences: Sequence[list[int]]) -> Iterator[torch.Tensor]:
        """Logits (N, V) of each text; texts are held as hidden states. Raises ExportError where they are not finite."""
        texts = self.begin(sequences)
        for _ in self.walk(texts):
            pass
        with self.source.filled(self.last_modules), torch.no_grad():
            for text in texts:
                logits = self.head_logits(text)
                check_finite(logits)
                yield logits

    def embed(self, text: Text, take: LayerCall) -> None:
        """Run what lies in front of the layers once more, whose weights must be there; `take` gets their calls."""
        self._around_layers(take, input_ids=torch.tensor([text.token_ids]))

    def filled_outer_modules(self) -> Any:
        """A context in which embeddings have their weights."""
        return self.source.filled(self.outer_modules)

    @property
    def outer_modules(self) -> list[torch.nn.Module]:
        """The modules in front of the layers, and small ones behind them."""
        children = self._base.named_children()
        return [child for name, child in children if child is not self._list and name not in _BEHIND_LAYERS]

    @property
    def last_modules(self) -> list[torch.nn.Module]:
        """The modules behind the layers, the head the last of them."""
        return [child for name, child in self._base.named_children() if name in _BEHIND_LAYERS] + [self.head]

    def _noting(self, text: Text) -> LayerCall:
        def note(index: int, hidden: torch.Tensor, arguments: dict[str, Any]) -> torch.Tensor:
            if index == 0:
                text.hidden = hidden
            text.arguments.append(arguments)
            return hidden

        return note

    def _around_layers(self, call: LayerCall, model: Any = None, **inputs: Any) -> Any:
        """Run the model, or its base without the head, with `call` in the place of each layer."""
        with ExitStack() as stack:
            for index, layer in enumerate(self.layers):
                stack.enter_context(self._replaced(index, layer, call))
            return (model or self._base)(**inputs, use_cache=False)

    @contextmanager
    def _replaced(self, index: int, layer: Layer, call: LayerCall) -> Iterator[None]:
        def forward(hidden_states: torch.Tensor, *others: Any, **arguments: Any) -> Any:
            if others:
                names = list(inspect.signature(type(layer).forward).parameters)[2:]  # behind its hidden states
                arguments = dict(zip(names, others, strict=False)) | arguments
            hidden = call(index, hidden_states, arguments)
            return (hidden,) if self._is_in_tuples else hidden

        layer.forward = forward
        try:
            yield
        finally:
            del layer.forward


def state_of(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """What speculators read of hidden states (B, N, E), or (A, B, N, E) of versions of which one is the active one."""
    return hidden if hidden.ndim == 3 else hidden[model.config.altup_active_idx]


def layers_of(model: PreTrainedModel) -> torch.nn.ModuleList:
    """A model's layers. Raises UnsupportedArchitectureError where they are not found."""
    return _base_of(model)[1]


def _base_of(model: PreTrainedModel) -> tuple[Any, torch.nn.ModuleList]:
    """The module that runs a model's layers, and these."""
    for module in model.modules():
        for child in module.children():
            if isinstance(child, torch.nn.ModuleList) and len(child) == model.config.num_hidden_layers:
                return module, child
    raise UnsupportedArchitectureError(f"The layers of {model.config.model_type!r} were not found.")


def _no_ids(text: Text) -> torch.Tensor:
    """The ids of embeddings when their weights are not there, and nothing comes of it."""
    return torch.zeros(1, text.hidden.shape[-2], dtype=torch.long)

"""Calibration: the source model runs over texts, a layer at a time, and second moments of layer inputs are summed."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from reader_edge_export.calibration.calibration import Calibration, ExpertInputs, InputMoments
from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_export.sources.source_model import LayerExperts, SourceModel, is_product, streamed_product
from reader_edge_export.sources.weights import ExpertMatrices

# Half a minute on two cores, but never less than is worth learning from.
_MAX_TOKEN_PARAMETERS = 1_000_000_000_000
_MIN_TOKENS = 1000


def max_calibration_tokens(num_parameters: int) -> int:
    """How many tokens a model of this size is calibrated on, at most."""
    return max(_MIN_TOKENS, _MAX_TOKEN_PARAMETERS // num_parameters)


def calibrate(model: LayeredModel, sequences: Sequence[list[int]], calibration: Calibration) -> None:
    """Run the source over the token ids of texts, each from its beginning, and add what is seen to a calibration.

    Raises ExportError where what it computes is not finite.
    """
    names = model.source.names
    layer = LayerInputs(products_of(model.outer_modules, model.source), [])
    texts = model.begin(sequences)
    for index in model.walk(texts):
        layer.add_to(calibration)
        modules: list[Any] = list(model.layers[index].modules())
        experts = [module.layer_experts for module in modules if hasattr(module, "layer_experts")]
        layer = LayerInputs(products_of([model.layers[index]], model.source), experts)
    layer.add_to(calibration)
    *between, _ = model.last_modules
    last, head = LayerInputs(products_of(between, model.source), []), InputMoments.none(model.head.weight.shape[1])
    with model.source.filled(between), torch.no_grad():
        for text in texts:
            head.add(model.head_inputs(text).flatten(end_dim=-2))
    last.add_to(calibration)
    calibration.add_inputs([names[id(model.head.weight)]], head)


def matrix_sizes(source: SourceModel) -> dict[str, tuple[int, int]]:
    """Inputs and outputs (K, J) of each matrix that a model multiplies by, the head's included, without experts'."""
    sizes = {}
    for module in source.skeleton.modules():
        if is_product(module):
            num_rows, num_columns = module.weight.shape
            inputs_first = isinstance(module, Conv1D)
            name = source.names[id(module.weight)]
            sizes[name] = (num_rows, num_columns) if inputs_first else (num_columns, num_rows)
    return sizes


def input_sizes(source: SourceModel) -> dict[str, int]:
    """Inputs of each matrix whose moments are counted, those of experts before their activation included."""
    experts = {each.up.name: each.up.shape[2] for each in source.experts.values()}
    return {name: num_inputs for name, (num_inputs, _) in matrix_sizes(source).items()} | experts


def expert_input_sizes(source: SourceModel) -> dict[str, int]:
    """How many numbers are kept of the inputs of experts behind their activation."""
    shapes = {each.down.name: each.down.shape for each in source.experts.values()}
    return {name: num_experts * (num_inputs + 1) for name, (num_experts, _, num_inputs) in shapes.items()}


def products_of(modules: Iterable[torch.nn.Module], source: SourceModel) -> dict[torch.nn.Module, str]:
    """The modules, and those within them, that multiply by a matrix alone, and the name of each one's matrix."""
    names = {id(module): name for name, module in source.skeleton.named_modules()}
    inner = (module for outer in modules for module in outer.modules())
    return {module: f"{names[id(module)]}.weight" for module in inner if is_product(module)}


class LayerInputs:
    """Counts what the products of a layer read; those that read the same rows share their moments, as experts do."""

    def __init__(self, products: Mapping[torch.nn.Module, str], experts: Sequence[LayerExperts]) -> None:
        self._names: list[tuple[list[str], InputMoments]] = []
        self._places: dict[str, InputMoments] = {}
        self._last: tuple[torch.Tensor, InputMoments] | None = None
        self._hooks = [
            module.register_forward_pre_hook(partial(self._count, name)) for module, name in products.items()
        ]
        self._experts = {each: ExpertInputs.none(each.down.shape[0], each.down.shape[2]) for each in experts}
        for each in experts:
            moments = InputMoments.none(each.up.shape[2])
            self._names.append(([each.up.name], moments))
            each.multiply = partial(_counted_product, each.up, moments, self._experts[each])

    def add_to(self, calibration: Calibration) -> None:
        """Hand on what was counted, and count no more."""
        for hook in self._hooks:
            hook.remove()
        for names, moments in self._names:
            calibration.add_inputs(names, moments)
        for each, inputs in self._experts.items():
            each.multiply = streamed_product
            calibration.add_expert_inputs(each.down.name, inputs)

    def _count(self, name: str, _module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        rows, moments = inputs[0], self._places.get(name)
        is_shared = self._last is not None and self._last[0] is rows
        if moments is None:
            moments = self._new(name, rows.shape[-1], is_shared)
        if not is_shared:
            moments.add(rows.flatten(end_dim=-2))
        self._last = rows, moments

    def _new(self, name: str, num_inputs: int, is_shared: bool) -> InputMoments:
        if is_shared:
            assert self._last is not None
            moments = self._last[1]
            next(names for names, each in self._names if each is moments).append(name)
        else:
            moments = InputMoments.none(num_inputs)
            self._names.append(([name], moments))
        self._places[name] = moments
        return moments


def _counted_product(
    up: ExpertMatrices,
    moments: InputMoments,
    inputs: ExpertInputs,
    matrices: ExpertMatrices,
    rows: torch.Tensor,
    experts: torch.Tensor,
) -> torch.Tensor:
    """An `ExpertProduct` that counts what it reads: rows (T, 1, K) before an activation, (T, k, K) behind it."""
    if matrices is up:
        moments.add(rows.flatten(end_dim=1))
    else:
        inputs.add(rows.flatten(end_dim=1), experts.flatten())
    return streamed_product(matrices, rows, experts)

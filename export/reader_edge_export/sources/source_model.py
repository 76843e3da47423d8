"""A model of transformers without loaded weights: its modules take no memory, and each parameter is read where it lies.

Parameters of one axis (norms, biases), depthwise convolutions and biases of experts are small and have their values;
matrices are placeholders of the right shape that share one number, until `filled` puts their values in. Those of
experts stay so: their mixture reads one expert's at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from transformers import PreTrainedModel
from transformers.integrations.moe import ExpertsInterface
from transformers.pytorch_utils import Conv1D

from reader_edge_export.sources.latent_heads import LatentHeads, latent_modules
from reader_edge_export.sources.weights import ExpertMatrices, Weights
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ExportError

_NAME = "reader_edge"  # of this implementation
_ROW = "e_score_correction_bias"  # of experts, which some have as a matrix of one row

# rows (T, k or 1, K) and the experts (T, k) that they are sent to -> (T, k, J)
ExpertProduct = Callable[[ExpertMatrices, torch.Tensor, torch.Tensor], torch.Tensor]
Place = tuple[torch.nn.Module, str]  # a module, and the name of a parameter in it


class LayerExperts:
    """The mixture of a layer, read one expert at a time: the implementation that configs of transformers name.

    Products of rows by experts' matrices can be replaced by a trace or a calibration. The router is the module's own.
    up, down: the matrices before and behind what bends an expert's values. multiply: how rows meet them."""

    def __init__(self, name: str, module: Any, weights: Weights) -> None:
        """name: of the module, one of transformers' experts."""
        self._module = module
        self.up, self.down = (
            _matrices(f"{name}.{part}", getattr(module, part), module.is_transposed, weights)
            for part in ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")
        )
        self.multiply: ExpertProduct = streamed_product
        module.layer_experts = self
        module.config._experts_implementation = _NAME

    def mix(self, rows: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """rows (T, E), each sent to experts (T, k) that have these weights (T, k) -> (T, E), added by rank."""
        before = self._product(self.up, rows[:, None], indices, "gate_up_proj_bias")
        bent: torch.Tensor = (self._module._apply_gate if self._module.has_gate else self._module.act_fn)(before)
        outputs = self._product(self.down, bent, indices, "down_proj_bias")
        return (outputs * weights[..., None]).cumsum(1)[:, -1]

    def _product(self, matrices: ExpertMatrices, rows: torch.Tensor, experts: torch.Tensor, bias: str) -> torch.Tensor:
        product = self.multiply(matrices, rows, experts)
        if not self._module.has_bias:
            return product
        biases: torch.Tensor = getattr(self._module, bias)
        return product + biases[experts]


def expert_modules(model: PreTrainedModel) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules of a model, by their names, whose mixture is the implementation's."""
    return ((name, each) for name, each in model.named_modules() if hasattr(type(each), "_apply_gate"))


def streamed_product(matrices: ExpertMatrices, rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """An `ExpertProduct` that has one expert's matrix in memory."""
    flat, chosen = rows.expand(*experts.shape, -1).flatten(end_dim=1), experts.flatten()
    order = chosen.argsort(stable=True)
    numbers, counts = chosen[order].unique_consecutive(return_counts=True)
    parts = flat[order].split(counts.tolist())
    outputs = [_multiply(part, matrices, expert) for part, expert in zip(parts, numbers.tolist(), strict=True)]
    return torch.cat(outputs)[order.argsort()].reshape(*experts.shape, -1)


class _ExpertProduct(torch.autograd.Function):
    """rows (R, K) by an expert's matrix, which gradients read again."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, matrices: ExpertMatrices, expert: int) -> torch.Tensor:
        ctx.matrices, ctx.expert = matrices, expert
        return rows @ torch.from_numpy(matrices.read(expert)).T

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient @ torch.from_numpy(ctx.matrices.read(ctx.expert)), None, None


_multiply: Callable[[torch.Tensor, ExpertMatrices, int], torch.Tensor] = _ExpertProduct.apply


def _matrices(name: str, parameter: torch.Tensor, is_transposed: bool, weights: Weights) -> ExpertMatrices:
    num_experts, first, second = parameter.shape
    sizes = (second, first) if is_transposed else (first, second)
    return ExpertMatrices(name, (num_experts, *sizes), is_transposed, weights)


def _mixture(module: Any, hidden_states: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """transformers' experts interface."""
    experts: LayerExperts = module.layer_experts
    return experts.mix(hidden_states, indices, weights)


ExpertsInterface.register(_NAME, _mixture)


def is_product(module: torch.nn.Module) -> TypeGuard[torch.nn.Linear | Conv1D]:
    """Whether a module multiplies by its weight, and does no more: Phi-MoE's router is a Linear that also chooses."""
    return type(module).forward in (torch.nn.Linear.forward, Conv1D.forward)


@dataclass(frozen=True, slots=True)
class SourceModel:
    """skeleton: the model of transformers, in fp32 with plain attention. weights: of its parameters, by their names.

    names: the name of each placeholder, by the id of the parameter; a tied one has the first of its names. experts: of
    each layer that has any, by the names of their modules. latent_heads: likewise, of attention to latents.
    """

    skeleton: PreTrainedModel
    weights: Weights
    names: Mapping[int, str] = field(init=False)
    experts: Mapping[str, LayerExperts] = field(init=False)
    latent_heads: Sequence[LatentHeads] = field(init=False)

    def __post_init__(self) -> None:
        modules = dict(expert_modules(self.skeleton))
        of_experts = {id(parameter) for module in modules.values() for parameter in module.parameters()}
        names = {}
        for name, parameter in self.skeleton.named_parameters():
            if _is_small(parameter, id(parameter) in of_experts) or name.endswith(_ROW):
                parameter.data = torch.from_numpy(self.weights.read(name))
            else:
                names[id(parameter)] = name
        object.__setattr__(self, "names", names)
        experts = {name: LayerExperts(name, module, self.weights) for name, module in modules.items()}
        object.__setattr__(self, "experts", experts)
        heads = [LatentHeads(name, module, self.weights) for name, module in latent_modules(self.skeleton)]
        object.__setattr__(self, "latent_heads", heads)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.skeleton.parameters())

    @property
    def num_experts(self) -> int | None:
        """Of each layer that has any; None where no layer does."""
        return next((experts.up.shape[0] for experts in self.experts.values()), None)

    @property
    def num_experts_per_token(self) -> int | None:
        """How many of them a token goes through."""
        config = self.skeleton.config
        named = (getattr(config, key, None) for key in ("top_k_experts", "num_experts_per_tok"))
        return next((number for number in named if number), None) if self.experts else None

    @property
    def table_names(self) -> set[str]:
        """The matrices that are looked up by token, but for positions."""
        modules = [module for module in self.skeleton.modules() if isinstance(module, torch.nn.Embedding)]
        learned = getattr(self.skeleton.base_model, "wpe", None)
        return {self.names[id(module.weight)] for module in modules if module is not learned}

    @contextmanager
    def filled(self, modules: Iterable[torch.nn.Module]) -> Iterator[None]:
        """While entered, matrices in the modules have their values, in fp32; embeddings look theirs up in the file, and
        experts stay as they are.
        """
        inner = [module for outer in modules for module in outer.modules()]
        others = [
            each for each in inner if not isinstance(each, torch.nn.Embedding) and not hasattr(each, "layer_experts")
        ]
        has_embedding = any(isinstance(each, torch.nn.Embedding) for each in inner)
        places = list(self._places(others))
        placeholders = [(module, name, module._parameters[name]) for module, name in places]
        try:
            self._fill(places)
            with self._looked_up() if has_embedding else nullcontext():
                yield
        finally:
            for module, name, parameter in placeholders:
                module._parameters[name] = parameter

    @contextmanager
    def _looked_up(self) -> Iterator[None]:
        """While entered, rows of placeholders are read when they are needed."""
        functions = torch.nn.functional
        embedding = functions.embedding

        def read(ids: torch.Tensor, weight: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
            name = self.names.get(id(weight))
            if name is None:
                return embedding(ids, weight, *others, **named)
            return torch.from_numpy(self.weights.rows(name, ids.numpy()))

        functions.embedding = read  # type: ignore[assignment]
        try:
            yield
        finally:
            functions.embedding = embedding

    def _fill(self, places: Iterable[Place]) -> None:
        read: dict[int, torch.nn.Parameter] = {}
        for module, name in places:
            key = id(module._parameters[name])
            if key not in read:
                read[key] = self._read(self.names[key])
            module._parameters[name] = read[key]

    def _read(self, name: str) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.from_numpy(self.weights.read(name)), requires_grad=False)

    def _places(self, modules: Iterable[torch.nn.Module]) -> Iterator[Place]:
        for module in modules:
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) in self.names:
                    yield module, name


def _is_small(parameter: torch.nn.Parameter, is_of_experts: bool) -> bool:
    if is_of_experts:
        return parameter.ndim == 2  # a bias of each
    # Of a depthwise convolution, or DFlash2's kernels before a sublayer and behind it.
    is_kernel = parameter.ndim == 3 and (parameter.shape[1] == 1 or parameter.shape[0] == 2)
    return parameter.ndim < 2 or is_kernel


def vocab_size_of(model: PreTrainedModel) -> int:
    """Rows of the logit head."""
    return int(_logit_head(model).shape[0])


def hidden_size_of(model: PreTrainedModel) -> int:
    """Columns of the logit head."""
    return int(_logit_head(model).shape[1])


def _logit_head(model: PreTrainedModel) -> torch.Tensor:
    head = model.get_output_embeddings()
    if head is None:
        raise ExportError(f"The model type {model.config.model_type!r} has no logit head here.")
    weight: torch.Tensor = head.weight
    return weight


def check_finite(computed: torch.Tensor) -> None:
    """Raise ExportError where what a model computes on the way to its logits is not finite, or they are not."""
    if not computed.isfinite().all():
        raise ExportError(
            "What the model computes is too large for 32-bit numbers: its weights are damaged, or not those of its "
            "config; fetch the model again."
        )


class ModuleWeights(Weights):
    """By the names of its parameters."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = dict(module.named_parameters())

    def read(self, name: str) -> Float32Array:
        values: Float32Array = self._parameters[name].detach().float().numpy().copy()
        return values

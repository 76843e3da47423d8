"""A model whose weights stay where they are: its modules without memory, and where each parameter is read.

Parameters of one axis (norms, biases), depthwise convolutions and biases of experts are small and have their values;
matrices are placeholders of the right shape that share one number, until `filled` puts their values in. Those of
experts stay so: their mixture reads one expert's at a time.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from reader_edge_export.sources.layer_experts import LayerExperts, expert_modules
from reader_edge_export.sources.weights import Weights

Place = tuple[torch.nn.Module, str]  # a module, and the name of a parameter in it


@dataclass(frozen=True, slots=True)
class SourceModel:
    """skeleton: the model of transformers, in fp32 with plain attention. weights: of its parameters, by their names.

    names: the name of each placeholder, by the id of the parameter; a tied one has the first of its names. experts: of
    each layer that has any, by the names of their modules.
    """

    skeleton: PreTrainedModel
    weights: Weights
    names: Mapping[int, str] = field(init=False)
    experts: Mapping[str, LayerExperts] = field(init=False)

    def __post_init__(self) -> None:
        modules = dict(expert_modules(self.skeleton))
        of_experts = {id(parameter) for module in modules.values() for parameter in module.parameters()}
        names = {}
        for name, parameter in self.skeleton.named_parameters():
            if _is_small(parameter, id(parameter) in of_experts):
                parameter.data = torch.from_numpy(self.weights.read(name))
            else:
                names[id(parameter)] = name
        object.__setattr__(self, "names", names)
        experts = {name: LayerExperts(name, module, self.weights) for name, module in modules.items()}
        object.__setattr__(self, "experts", experts)

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
    is_depthwise = parameter.ndim == 3 and parameter.shape[1] == 1
    return parameter.ndim < 2 or is_depthwise

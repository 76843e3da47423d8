"""A model whose weights stay where they are: its modules without memory, and where each parameter is read.

Parameters of one axis (norms, biases) and depthwise convolutions are small and have their values; matrices are
placeholders of the right shape that share one number, until `filled` puts their values in.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from reader_edge_export.sources.blank_model import check_memory
from reader_edge_export.sources.weights import Weights
from reader_edge_runtime.errors import ExportError

Place = tuple[torch.nn.Module, str]  # a module, and the name of a parameter in it


@dataclass(frozen=True, slots=True)
class SourceModel:
    """skeleton: the model of transformers, in fp32 with plain attention. weights: of its parameters, by their names.

    names: the name of each placeholder, by the id of the parameter; a tied one has the first of its names.
    """

    skeleton: PreTrainedModel
    weights: Weights
    names: Mapping[int, str] = field(init=False)

    def __post_init__(self) -> None:
        parameters = dict(self.skeleton.named_parameters())
        for name, parameter in parameters.items():
            if _is_small(parameter):
                parameter.data = torch.from_numpy(self.weights.read(name))
        names = {id(parameter): name for name, parameter in parameters.items() if not _is_small(parameter)}
        object.__setattr__(self, "names", names)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.skeleton.parameters())

    @property
    def table_names(self) -> set[str]:
        """The matrices that are looked up by token, but for positions."""
        modules = [module for module in self.skeleton.modules() if isinstance(module, torch.nn.Embedding)]
        learned = getattr(self.skeleton.base_model, "wpe", None)
        return {self.names[id(module.weight)] for module in modules if module is not learned}

    @contextmanager
    def filled(self, modules: Iterable[torch.nn.Module]) -> Iterator[None]:
        """While entered, matrices in the modules have their values, in fp32; embeddings look theirs up in the file."""
        inner = [module for outer in modules for module in outer.modules()]
        modules = [module for module in inner if not isinstance(module, torch.nn.Embedding)]
        placeholders = [(module, name, module._parameters[name]) for module, name in self._places(modules)]
        try:
            self._fill(modules)
            with self._looked_up() if len(modules) < len(inner) else nullcontext():
                yield
        finally:
            for module, name, parameter in placeholders:
                module._parameters[name] = parameter

    def whole(self, source: str, error: type[ExportError] = ExportError) -> PreTrainedModel:
        """The skeleton with all of its weights in memory, for good. Raises `error` where memory is short.

        source: the file or folder, for the error.
        """
        check_memory(self.skeleton, source, error)
        self._fill(list(self.skeleton.modules()))
        return self.skeleton

    @contextmanager
    def _looked_up(self) -> Iterator[None]:
        """While entered, rows of placeholders are read when they are asked for."""
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

    def _fill(self, modules: Iterable[torch.nn.Module]) -> None:
        read: dict[int, torch.nn.Parameter] = {}
        for module, name in list(self._places(modules)):
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


def _is_small(parameter: torch.nn.Parameter) -> bool:
    is_depthwise = parameter.ndim == 3 and parameter.shape[1] == 1
    return parameter.ndim < 2 or is_depthwise

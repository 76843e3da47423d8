"""The weights that a second reading computes with, by the names of their parameters."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor


class Tensors(ABC):
    """The weights of a module by the names of its parameters, those that are tied by the first of theirs alone."""

    @abstractmethod
    def __getitem__(self, name: str) -> Tensor: ...

    @abstractmethod
    def __contains__(self, name: str) -> bool: ...

    @abstractmethod
    def rows(self, name: str, indices: Tensor) -> Tensor:
        """Some rows of a matrix, which need not be read whole."""

    def get(self, name: str) -> Tensor | None:
        return self[name] if name in self else None  # noqa: SIM401 (no mapping)


class WideTensors(Tensors):
    """Others in float64, each when it is asked for; those of experts when indexed."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Any:
        values = self._tensors[name]
        return values.double() if isinstance(values, Tensor) else _WideParts(values)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def rows(self, name: str, indices: Tensor) -> Tensor:
        return self._tensors.rows(name, indices).double()


class _WideParts:
    def __init__(self, parts: Any) -> None:
        self._parts = parts

    def __getitem__(self, index: int) -> Tensor:
        wide: Tensor = self._parts[index].double()
        return wide


class HeldTensors(Tensors):
    """Tensors that a mapping holds."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def rows(self, name: str, indices: Tensor) -> Tensor:
        return self._tensors[name][indices]

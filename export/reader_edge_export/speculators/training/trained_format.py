"""What each format has of its own in the training of a speculator: its network, how that begins, and its folder."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.state_recorder import RecordedAnswer
from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target

MAX_IDS = 4096  # that training looks at: a logit head of more takes most of a step


@dataclass(frozen=True, slots=True)
class Material:
    """What a network begins from. ids: int32, that the target names most often, in ascending order, MAX_IDS at most.

    columns: of the states that the target reports, those that the network reads.
    """

    package: ModelPackage
    target: Target
    answers: Sequence[RecordedAnswer]
    ids: Int32Array
    columns: Sequence[int]


class TrainedFormat(ABC):
    """name: of the format, as `SpeculatorPart` has it. row: of `Batches`."""

    name: str
    row = 0

    @abstractmethod
    def state_ids(self, manifest: Manifest) -> tuple[int, ...]:
        """Of the target's states those that it reads. Raises ExportError where a package does not report them."""

    @abstractmethod
    def untrained(self, manifest: Manifest) -> SpeculatorModule:
        """A network whose passes take as long as those of a trained one."""

    @abstractmethod
    def begin(self, material: Material) -> tuple[SpeculatorModule, torch.Tensor]:
        """A network with first weights, and the scale of states by which training divides them: float32 (J * E,)."""

    @abstractmethod
    def tensors(self, module: SpeculatorModule, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        """Those that a folder has. scale: as `begin` gives it."""

    @abstractmethod
    def config(self, module: SpeculatorModule, state_ids: Sequence[int]) -> Mapping[str, Any]:
        """What config.json says, beside what it says in every format."""

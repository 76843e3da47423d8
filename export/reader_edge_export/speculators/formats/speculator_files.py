"""The files of a trained speculator, read from config.json and the headers of its weights alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reader_edge_export.sources.folder.stored_tensors import StoredTensor


@dataclass(frozen=True, slots=True)
class SpeculatorFiles:
    """format: one of SPECULATOR_FORMATS. folder: where its weights are, or its GGUF file. layer: the config of its
    decoder layers, as config.json has configs.

    tensors: by the names that its module has for them. state_ids: which states of the target it reads, in the order in
    which they are joined; None where it does not say. switches: what else `Eagle3Config` has, by name.
    """

    format: str
    folder: Path
    layer: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    draft_vocab_size: int | None = None
    target_size: int | None = None
    state_ids: tuple[int, ...] | None = None
    switches: Mapping[str, bool] = field(default_factory=dict)

    @property
    def files(self) -> list[Path]:
        """All that is read of it."""
        config = [self.folder / "config.json"] if self.folder.is_dir() else []
        return sorted({*config, *(tensor.file for tensor in self.tensors.values())})

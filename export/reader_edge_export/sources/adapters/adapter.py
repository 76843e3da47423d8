"""An adapter of low rank (LoRA, https://arxiv.org/abs/2106.09685), and weights that it is merged into as they are read.

`merged_weights.py` does that; peft_folder.py and gguf_adapter.py are the two kinds.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from reader_edge_export.sources.find import is_gguf
from reader_edge_export.sources.source import Source
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import sha256_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MERGE = "merge it into its model with peft's merge_and_unload, and give the merged one"
_SIZE = re.compile(r"\d[\d.]*[bm]")
_NUMBER = re.compile(r"(?<![\d.vq_])\d[\d.]*[bm]?(?![\d.]*-?bit)")  # of a version and a size, not of a release


@dataclass(frozen=True, slots=True)
class Factors:
    """What an adapter adds to a matrix (J, K), outputs first: up (J, r) times down (r, K), both fp32, r its rank.

    magnitude: of DoRA (https://arxiv.org/abs/2402.09353), fp32 (J,): the length that each output's weights then get.
    """

    up: Float32Array
    down: Float32Array
    magnitude: Float32Array | None = None


ReadFactors = Callable[[], Factors]


@dataclass(frozen=True, slots=True)
class Adapter(ABC):
    """One whose config and header were read and checked.

    path: of its folder or file. base: the name of the model that it was trained on, "" where it names none.
    """

    path: Path
    base: str

    @property
    @abstractmethod
    def files(self) -> list[Path]:
        """All that is read of it."""

    @abstractmethod
    def factors(self, model: "PreTrainedModel") -> Mapping[str, ReadFactors]:
        """By the names of a model's parameters, what reads the factors of each matrix that is changed.

        Shapes are compared here, before anything is read. Raises ExportError where it is for another model.
        """

    @property
    def short_name(self) -> str:
        return "".join(char if char.isprintable() else "?" for char in self.path.absolute().name)

    def fingerprint(self, of_model: str) -> str:
        """SHA-256 (hex) over that of the model and the adapter's files."""
        return sha256("".join([of_model, *map(sha256_of, self.files)]).encode()).hexdigest()

    def check_base(self, source: Source) -> None:
        """Raise ExportError where the names of its model and of the source tell of two models.

        Only numbers are compared, and only where both have the size of a model among them: one model has many names.
        """
        own, given = (re.split(r"[/\\]", name)[-1].lower() for name in (self.base, source.short_name))
        if not (_SIZE.search(own) and _SIZE.search(given)) or {*_NUMBER.findall(own)} <= {*_NUMBER.findall(given)}:
            return
        raise ExportError(
            f"'{self.path}' was trained on {self.base!r:.100} and not on '{source.short_name}': give that model, or "
            "correct the name in the adapter if they are the same."
        )


def find_adapter(path: Path, source: Source) -> Adapter:
    """The adapter in a PEFT folder or a GGUF file, as far as it can be checked without the model's modules.

    Raises ExportError (or a child), with the remedy in one sentence.
    """
    if path.is_dir():
        from reader_edge_export.sources.adapters.peft_folder import PeftFolder

        found: Adapter = PeftFolder.open(path)
    elif is_gguf(path):
        from reader_edge_export.sources.adapters.gguf_adapter import GgufAdapter

        found = GgufAdapter.open(path, source)
    else:
        raise ExportError(f"No adapter at '{path}': give a folder that PEFT wrote, or a GGUF file of an adapter.")
    found.check_base(source)
    return found

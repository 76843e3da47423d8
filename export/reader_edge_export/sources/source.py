"""The interface of a source: a config, a PyTorch module, a tokenizer, and a fingerprint of its files.

folder/hugging_face.py and gguf/gguf_source.py are the two kinds.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.package.manifest import MAX_VOCAB

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from reader_edge_export.sources.source_model import SourceModel


@dataclass(frozen=True, slots=True)
class Source(ABC):
    """A model that can be exported, as far as is known before anything heavy is imported.

    name: as the user gave it. config: what config.json holds, or would hold. max_context: tokens of context to export.
    weight_types: how its weights are stored, by GGUF's names, e.g. ("Q4_1", "F32"), most bytes first; () if unknown.
    """

    name: str
    config: dict[str, Any]
    max_context: int
    weight_types: tuple[str, ...]

    @property
    def short_name(self) -> str:
        """The hub id, or the own name of a local folder or file; characters that cannot be shown become "?"."""
        name = source_name(Path(self.name)) if Path(self.name).exists() else self.name
        return "".join(char if char.isprintable() else "?" for char in name)

    @property
    def architecture(self) -> str:
        return str(self.config["model_type"])

    @property
    @abstractmethod
    def files(self) -> list[Path]:
        """All that is read of it, and perhaps more."""

    @property
    def pooling(self) -> str:
        """As of `Manifest`. A Qwen3-Reranker that says nothing of it is known by its name."""
        return self.own_pooling() or ("rank" if is_reranker(self.short_name, self.config) else "")

    @abstractmethod
    def own_pooling(self) -> str:
        """What its files say of it; "" where they say nothing. Raises ExportError."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Modules of the source that are not part of its text model, which alone is exported."""
        return ()

    @abstractmethod
    def sampling(self) -> dict[str, float]:
        """How its maker recommends to choose tokens (`Manifest.sampling`). Raises ExportError."""

    def other_choices(self) -> tuple[str, ...]:
        """What its maker asks for besides when tokens are chosen, which is not done here."""
        return ()

    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the files that make the model."""

    @abstractmethod
    def open_model(self) -> "SourceModel":
        """The model, its weights left where they are. Raises ExportError where they do not fit its config."""

    @property
    def is_kept(self) -> bool:
        """Whether most of its weights are in types that can stay as they are, so that they usually do."""
        return False

    def check_keepable(self) -> None:
        """Raise ConfigError where no matrix can stay as it is."""
        raise self._nothing_to_keep()

    def _nothing_to_keep(self) -> ConfigError:
        return ConfigError(
            f"precision 'keep' is for GGUF files and for weights in MXFP4, and '{self.short_name}' is neither: use "
            "'int8', 'int4' or another."
        )

    @abstractmethod
    def load_tokenizer(self, vocab_size: int) -> "PreTrainedTokenizerFast":
        """Its fast tokenizer. Raises TokenizerError where it cannot be read, or knows more tokens than the model."""

    @property
    def config_vocab_size(self) -> int:
        """That of config.json; the most that there can be where it has none."""
        size = self.config.get("vocab_size")
        return size if isinstance(size, int) else MAX_VOCAB

    @abstractmethod
    def special_token_ids(self, tokenizer: "PreTrainedTokenizerFast") -> tuple[tuple[int, ...], int | None]:
        """(ids that end an answer, that of a text first; id that begins a text, None without)."""


def is_reranker(name: str, config: Mapping[str, Any]) -> bool:
    """Whether it is called one, of the one kind whose prompt is known: Qwen3-Reranker's files say it nowhere."""
    return config.get("model_type") == "qwen3" and "reranker" in name.lower()


def source_name(path: Path) -> str:
    """The name of a folder or file, not of what a link leads to; of a snapshot in the hub's cache, that of its model.

    Such a snapshot is models--OWNER--NAME/snapshots/COMMIT.
    """
    place = Path(os.path.abspath(path))
    model = place.parent.parent.name
    if place.parent.name == "snapshots" and model.startswith("models--"):
        return model.rpartition("--")[2]
    return place.name

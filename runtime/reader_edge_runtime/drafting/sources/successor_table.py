"""The target's likely successors of single tokens: what drafting knows of a model before it has seen a text."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reader_edge_runtime.array_file import ArrayFormat
from reader_edge_runtime.drafting.kernels.arrays import Float32Table, Int32Table
from reader_edge_runtime.errors import DraftError, PackageError
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage

LEARNED = ArrayFormat(
    magic=b"\x89redgdr\n",
    error=DraftError,
    name="what a drafter learned",
    owner="tokenizer",
    remedy="erase it, the drafter learns again",
)
_BYTES_OF_SUCCESSOR = 8
_MOST_OTHER_BYTES = 1024  # of a table's file: its header, and names and shapes of arrays


@dataclass(frozen=True, slots=True)
class SuccessorTable:
    """What the target predicted after each of the first T tokens of its vocabulary, as an answer's first token.

    token_ids: int32 (T, K), the best successors, best first. logits: float32 (T, K), theirs.
    """

    token_ids: Int32Table
    logits: Float32Table

    @classmethod
    def of_package(cls, package: ModelPackage, tokenizer_fingerprint: str) -> "SuccessorTable | None":
        """The table that a package has; None without one. Raises PackageError for one that cannot be its own."""
        if SUCCESSORS_NAME not in package.manifest.files:
            return None
        path = package.path(SUCCESSORS_NAME)
        try:
            arrays = LEARNED.read(path, bytes.fromhex(tokenizer_fingerprint), max_table_bytes(package.manifest))
            table = cls(arrays["token_ids"], arrays["logits"])
        except (DraftError, KeyError) as error:
            raise PackageError(f"'{path}' holds no successors of this package: export the model again.") from error
        if not table._is_sound(package.manifest):
            raise PackageError(f"'{path}' names successors that cannot be: export the model again.")
        return table

    def write(self, path: Path, tokenizer_fingerprint: str) -> None:
        """Raises DraftError where it cannot be written."""
        arrays = {"token_ids": self.token_ids, "logits": self.logits}
        LEARNED.write(path, bytes.fromhex(tokenizer_fingerprint), arrays)

    def __len__(self) -> int:
        return len(self.token_ids)

    def _is_sound(self, manifest: Manifest) -> bool:
        token_ids, logits, vocab_size = self.token_ids, self.logits, manifest.vocab_size
        return bool(
            token_ids.dtype == np.int32
            and logits.dtype == np.float32
            and token_ids.ndim == 2
            and token_ids.size > 0
            and token_ids.shape == logits.shape
            and len(token_ids) <= vocab_size
            and token_ids.shape[1] <= manifest.top_k
            and ((token_ids >= 0) & (token_ids < vocab_size)).all()
            and (np.diff(np.sort(token_ids, axis=1), axis=1) > 0).all()  # none twice
            and np.isfinite(logits).all()
            and (logits[:, :-1] >= logits[:, 1:]).all()
        )


def max_table_bytes(manifest: Manifest) -> int:
    """The most bytes that a table of the whole vocabulary takes."""
    return manifest.vocab_size * manifest.top_k * _BYTES_OF_SUCCESSOR + _MOST_OTHER_BYTES

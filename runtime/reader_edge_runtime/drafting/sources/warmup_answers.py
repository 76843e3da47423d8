"""The model's own answers to common instructions, made before its first request, so that drafts have a history at once.

They lie in a file beside the package's own, which no manifest lists: it can be made, replaced and erased at any time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reader_edge_runtime.array_file import ArrayFormat
from reader_edge_runtime.arrays import Array, Int32Array
from reader_edge_runtime.atomic_file import check_writable, write_failure
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.errors import PackageError
from reader_edge_runtime.package.model_package import ModelPackage

WARMUP_ANSWERS_NAME = "own_answers.bin"
MOST_TOKENS = DraftConfig().max_history_tokens  # more would be forgotten at once

_MOST_BYTES_A_TOKEN, _MOST_OTHER_BYTES = 8, 1024  # with its text's length; header, and names and shapes of arrays
_MOST_BYTES = MOST_TOKENS * _MOST_BYTES_A_TOKEN + _MOST_OTHER_BYTES
_REMEDY = "erase it, `reader-edge warm` makes it again"
_AGAIN, _ELSEWHERE = "warm it again", "copy the package to a folder that can be written"
_FORMAT = ArrayFormat(
    magic=b"\x89redgoa\n",
    error=PackageError,
    name="a model's own answers",
    owner="package",
    remedy=_REMEDY,
    other=_REMEDY,  # nobody named it
    again=_AGAIN,
    elsewhere=_ELSEWHERE,
)


@dataclass(frozen=True, slots=True)
class WarmupAnswers:
    """texts: int32 (n,) each, the ends of prompts with what the model answered to them, at most MOST_TOKENS in all."""

    texts: Sequence[Int32Array]

    @classmethod
    def of_package(cls, package: ModelPackage) -> "WarmupAnswers | None":
        """Those beside a package; None without. Raises PackageError for a file that cannot be read, or is another's."""
        path = package.folder / WARMUP_ANSWERS_NAME
        if not path.is_symlink() and not path.exists():
            return None
        if path.is_symlink():
            raise PackageError(f"'{path}' leads elsewhere: {_REMEDY}.")
        arrays = _FORMAT.read(path, package.fingerprint(), _MOST_BYTES)
        tokens, lengths = arrays.get("tokens"), arrays.get("lengths")
        if tokens is None or lengths is None or not _are_sound(tokens, lengths, package.manifest.vocab_size):
            raise PackageError(f"'{path}' holds no answers that this model could give: {_REMEDY}.")
        return cls(np.split(tokens, np.cumsum(lengths)[:-1]))

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.texts))

    @staticmethod
    def check_place(package: ModelPackage, num_tokens: int) -> None:
        """Raises PackageError where no file of so many tokens can be made beside a package."""
        path = package.folder / WARMUP_ANSWERS_NAME
        try:
            check_writable(path, num_tokens * _MOST_BYTES_A_TOKEN + _MOST_OTHER_BYTES)
        except OSError as error:
            raise PackageError(write_failure(path, error, _AGAIN, _ELSEWHERE)) from error

    def write(self, package: ModelPackage) -> Path:
        """Put them beside a package, in place of others. Raises PackageError where that is not possible."""
        path = package.folder / WARMUP_ANSWERS_NAME
        lengths = np.array([len(text) for text in self.texts], np.int32)
        _FORMAT.write(path, package.fingerprint(), {"tokens": np.concatenate(self.texts), "lengths": lengths})
        return path


def _are_sound(tokens: Array, lengths: Array, vocab_size: int) -> bool:
    """Whether compiled drafting can look these tokens up unchecked."""
    return bool(
        tokens.dtype == lengths.dtype == np.int32
        and tokens.ndim == lengths.ndim == 1
        and 0 < len(tokens) <= MOST_TOKENS
        and (lengths > 0).all()
        and lengths.sum(dtype=np.int64) == len(tokens)
        and ((tokens >= 0) & (tokens < vocab_size)).all()
    )

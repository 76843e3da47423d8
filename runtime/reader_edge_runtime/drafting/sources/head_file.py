"""A trained head on disk: one file that belongs to a target, and is whole and within bounds or refused.

Its graph reads B hidden states of the target and as many pending tokens, and guesses two tokens ahead. Tokens are
numbers of `ids`; the number len(ids) stands for all others.

    hidden_states  float32 (B, E)    probabilities, numbers            float32, int64 (B, NUM_FIRST)
    pending        int64 (B,)        next_probabilities, next_numbers  float32, int64 (B, NUM_GUESSES, NUM_SECOND)

The second guesses follow the first NUM_GUESSES of the first ones.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.array_file import ArrayFormat
from reader_edge_runtime.errors import HeadError
from reader_edge_runtime.package.graph_file import GraphFile
from reader_edge_runtime.package.manifest import Manifest

NUM_FIRST, NUM_GUESSES, NUM_SECOND = 6, 3, 4

_MAX_BYTES = 1 << 28
_MAX_NODES = 256
# What a head's products are made of; none makes more of its inputs than their sizes say.
_OPERATORS = (
    *("Add", "Cast", "Concat", "DynamicQuantizeLinear", "Gather", "MatMulInteger", "Mul", "Sigmoid"),
    *("Slice", "Softmax", "Sub", "TopK", "Unsqueeze"),
)
_FORMAT = ArrayFormat(
    magic=b"\x89redghd\n",
    error=HeadError,
    name="a trained head",
    owner="model",
    remedy="train it again with 'reader-edge train-drafter'",
)

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


class Guesses(NamedTuple):
    """What a head says of B texts; arrays as the graph gives them."""

    probabilities: Float32Array
    numbers: Int64Array
    next_probabilities: Float32Array
    next_numbers: Int64Array


class HeadModel(Protocol):
    """A head's graph that runs."""

    def guess(self, hidden_states: Float32Array, pending: Int64Array) -> Guesses:
        """Raises ProviderError where the graph fails, or gives anything but arrays of these shapes."""


@dataclass(frozen=True, slots=True)
class HeadFile:
    """graph: an ONNX model. ids: int32 (K,), the tokens that can be guessed, in ascending order."""

    graph: bytes
    ids: Int32Array

    @classmethod
    def read(cls, path: Path, manifest: Manifest) -> "HeadFile":
        """The head of a file. Raises HeadError for one that is not sound, or was trained for another model."""
        if manifest.hidden_size is None:
            raise HeadError(f"This package reports no hidden states, which '{path}' reads: export the model again.")
        arrays = _FORMAT.read(path, _fingerprint(manifest), _MAX_BYTES)
        graph, ids = arrays.get("graph"), arrays.get("ids")
        if graph is None or graph.dtype != np.uint8 or ids is None or not _are_ids(ids, manifest.vocab_size):
            raise HeadError(f"'{path}' names tokens that cannot be: train it again with 'reader-edge train-drafter'.")
        head = cls(graph.tobytes(), ids)
        if not head._is_sound():
            raise HeadError(f"'{path}' holds operators that no trained head has: do not trust this file.")
        return head

    def write(self, path: Path, manifest: Manifest) -> None:
        """Raises HeadError where it cannot be written."""
        _FORMAT.write(path, _fingerprint(manifest), {"graph": np.frombuffer(self.graph, np.uint8), "ids": self.ids})

    def _is_sound(self) -> bool:
        try:
            graph = GraphFile.of_bytes(self.graph)
        except (ValueError, IndexError):
            return False
        is_plain = not (graph.external_files or graph.has_subgraphs or graph.functions)
        return is_plain and len(graph.nodes) <= _MAX_NODES and graph.operators <= {("", name) for name in _OPERATORS}


def _are_ids(ids: npt.NDArray[np.generic], vocab_size: int) -> bool:
    """Whether these are at least as many ids of a vocabulary as are guessed at once, in ascending order."""
    if ids.dtype != np.int32 or ids.ndim != 1 or len(ids) < NUM_FIRST:
        return False
    return bool(ids[0] >= 0 and ids[-1] < vocab_size and (np.diff(ids.astype(np.int64)) > 0).all())


def _fingerprint(manifest: Manifest) -> bytes:
    """Of what was exported: a head serves all packages of it, since rounding hardly moves hidden states."""
    return hashlib.sha256(f"{manifest.source_fingerprint} {manifest.hidden_size}".encode()).digest()

"""The target's likeliest next tokens after each token and pair of tokens, recorded from its logits, to draft from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.array_file import ArrayFormat
from reader_edge_runtime.draft_tree import ScoredTree
from reader_edge_runtime.drafting.kernels import successors
from reader_edge_runtime.drafting.kernels.arrays import Float32Table, Int32Table, SuccessorRecords
from reader_edge_runtime.drafting.kernels.kernel import packed
from reader_edge_runtime.drafting.kernels.layout import LEVELS
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


_FIRST_TOKENS = 1 << 10
_ROOM = 2 * successors.MAX_SUCCESSORS


class SuccessorStore:
    """What the target predicted when a token, and a pair of tokens, was last scored.

    max_pairs: pairs that are kept, rounded up to a power of two; with 0 nothing is ever learned.
    table: what it knows to begin with; what is learned moves its records like all others.
    arrays: as kernels/successors.py lays them out; replaced when the first grows, to the highest token id seen.
    """

    def __init__(self, max_pairs: int, table: SuccessorTable | None = None) -> None:
        self.max_pairs = max_pairs
        num_rows = 1 << (max(max_pairs, successors.WAYS) - 1).bit_length() if max_pairs else successors.WAYS
        num_tokens = _FIRST_TOKENS if max_pairs else 0
        self._take(SuccessorRecords(*(np.zeros((num, successors.RECORD), np.int32) for num in (num_tokens, num_rows))))
        self._work = packed(successors.SuccessorBuffers(np.zeros(_ROOM, np.int64), np.zeros(_ROOM, np.float32)))
        if table is not None and max_pairs:
            if len(table) > num_tokens:
                self._grow(len(table) - 1)
            self.arrays.after_token[: len(table)] = _records(table)

    def learn(self, scored: ScoredTree, text: Sequence[int]) -> None:
        """Record the target's best successors of a tree's nodes. text: the request's, to the tree's root at least."""
        if not self.max_pairs:
            return
        nodes = np.array([scored.tree.token_ids, scored.tree.parents], np.int64)
        before, further = (text[scored.root - back] if scored.root >= back else -1 for back in (1, 2))
        top_ids = np.ascontiguousarray(scored.top_ids, np.int64)
        top_logits = np.ascontiguousarray(scored.top_logits, np.float32)
        learned = 0
        while True:
            scores = (top_ids[learned:], top_logits[learned:])
            first = scored.rows.start + learned
            learned += successors.learn(self._packed, self._work, nodes, first, before, further, *scores)
            if learned == len(scored.rows):
                break
            self._grow(int(nodes[0].max()))

    def restore(self, after_token: Int32Table, after_pair: Int32Table, vocab_size: int) -> None:
        """Take up the arrays of another store. Raises DraftError for ones that kernels could not walk."""
        if after_pair.shape != self.arrays.after_pair.shape or len(after_token) > max(_FIRST_TOKENS, 2 * vocab_size):
            raise DraftError("Recorded successors are of another draft configuration: start over.")
        for records in (after_token, after_pair):
            num_named = records[:, successors.NUM_AND_LEVEL] // LEVELS
            is_named = np.arange(successors.MAX_SUCCESSORS) < num_named[:, None]
            named = records[:, successors.NAMED : successors.NUMBERS][is_named]
            is_counted = (num_named >= 0) & (num_named <= successors.MAX_SUCCESSORS)
            if not (np.all(is_counted) and np.all((named >= 0) & (named < vocab_size))):
                raise DraftError("Recorded successors are not sound: start over.")
        self._take(SuccessorRecords(after_token, after_pair))

    def _grow(self, token_id: int) -> None:
        grown: Int32Table = np.zeros((1 << token_id.bit_length(), successors.RECORD), np.int32)
        grown[: len(self.arrays.after_token)] = self.arrays.after_token
        self._take(self.arrays._replace(after_token=grown))

    def _take(self, arrays: SuccessorRecords) -> None:
        self.arrays = arrays
        self._packed = packed(arrays)


def _records(table: SuccessorTable) -> Int32Table:
    """A table's rows as `successors.learn` would have recorded them, with no token before."""
    num, most = len(table), min(table.token_ids.shape[1], successors.MAX_SUCCESSORS)
    shares = np.exp(table.logits[:, :most] - table.logits[:, :1])
    shares /= shares.sum(axis=1, keepdims=True)
    is_named = shares > successors.LOWEST_P
    numbers: npt.NDArray[np.uint16] = np.zeros((num, successors.MAX_SUCCESSORS), np.uint16)
    numbers[:, :most] = np.where(is_named, np.minimum(shares * 65536, 65535), 0)
    levels = np.searchsorted(successors.LEVEL_EDGES, shares[:, 0], side="right")
    records: Int32Table = np.zeros((num, successors.RECORD), np.int32)
    records[:, [successors.BEFORE, successors.FURTHER]] = -1
    records[:, successors.TOKEN] = np.arange(num)
    records[:, successors.NUM_AND_LEVEL] = is_named.sum(axis=1) * LEVELS + levels
    records[:, successors.NAMED : successors.NAMED + most] = np.where(is_named, table.token_ids[:, :most], 0)
    records[:, successors.NUMBERS :] = numbers.view(np.int32)
    return records

"""Several datastores, searched as if they were one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.drafting.kernels import datastore as kernels
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore, check_together
from reader_edge_runtime.drafting.sources.datastore.header import MAX_FILES, DatastoreHeader

_CHUNK = 1 << 20
_NO_FILE = np.frombuffer(b"", np.uint32)


@dataclass(frozen=True, slots=True)
class DatastoreMatch:
    """Where a run of tokens occurs: see the state in `kernels.datastore`."""

    state: Int32Array

    @property
    def length(self) -> int:
        """Tokens matched; 0: none occurs."""
        return int(self.state[0])

    @property
    def num_occurrences(self) -> int:
        return int((self.state[2::2] - self.state[1::2]).sum())


class DatastoreSet:
    """Opened datastores of one tokenizer, which answer as a single merged one would.

    files: argument of the kernels in `kernels.datastore`.
    """

    def __init__(self, datastores: Sequence[Datastore]) -> None:
        check_together(datastores)
        self._datastores = list(datastores)
        words = [datastore.words for datastore in datastores]
        words += [_NO_FILE] * (MAX_FILES - len(words))
        layouts = np.array([_layout(datastore.header) for datastore in datastores], np.int64)
        self.files = kernels.DatastoreArrays(
            (words[0], words[1], words[2], words[3]), layouts.reshape(-1, kernels.LAYOUT)
        )

    def find(self, token_ids: Sequence[int], max_length: int) -> DatastoreMatch:
        """The longest suffix of token_ids that occurs, of at most max_length tokens."""
        state = np.zeros(kernels.STATE, np.int32)
        kernels.find(self.files, np.array(token_ids, np.int32), max_length, state)
        return DatastoreMatch(state)

    def narrow(self, match: DatastoreMatch, token_id: int) -> DatastoreMatch:
        """The match extended by a token; its length is 0 where that does not occur."""
        state = np.zeros(kernels.STATE, np.int32)
        kernels.narrow(self.files, match.state, token_id, state)
        return DatastoreMatch(state)

    def successors(self, match: DatastoreMatch, max_children: int) -> list[tuple[int, int]]:
        """(token id, count) of what followed a match, most frequent first, within microseconds.

        Approximate for many occurrences, see `kernels.datastore.successors`; `count_successors` is exact.
        """
        token_ids = np.empty(kernels.MAX_GATHERED, np.int32)
        counts = np.empty(kernels.MAX_GATHERED, np.int32)
        num = kernels.successors(self.files, match.state, max_children, token_ids, counts)
        return list(zip(token_ids[:num].tolist(), counts[:num].tolist(), strict=True))

    def count_successors(self, match: DatastoreMatch) -> list[tuple[int, int]]:
        """(token id, count) of all that followed a match, most frequent (then lowest id) first."""
        totals = np.zeros(max((datastore.header.vocab_size for datastore in self._datastores), default=0), np.int64)
        for number, datastore in enumerate(self._datastores):
            lo, hi = match.state[1 + 2 * number : 3 + 2 * number].tolist()
            header = datastore.header
            for start in range(lo, hi, _CHUNK):
                positions = datastore.suffixes[start : min(start + _CHUNK, hi)].astype(np.int64) + match.length
                token_ids = datastore.tokens[positions[positions < header.num_positions]]
                token_ids = token_ids[token_ids < header.vocab_size]  # no document ends
                totals[: header.vocab_size] += np.bincount(token_ids, minlength=header.vocab_size)
        found = np.flatnonzero(totals)
        order = np.argsort(-totals[found], kind="stable")
        return [(int(token_id), int(totals[token_id])) for token_id in found[order]]


def _layout(header: DatastoreHeader) -> tuple[int, ...]:
    """In the order of `kernels.datastore`: offsets count words of four bytes."""
    tokens = (header.tokens_at // 4, header.num_positions, header.token_bytes == 4)
    return (*tokens, header.suffixes_at // 4, header.num_tokens, header.keys_at // 4, header.vocab_size)

"""A reference for look-ups in datastores: every position of every document is searched."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reader_edge_runtime.drafting.sources.datastore.builder import DatastoreBuilder
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.header import KEY_STEP, DatastoreFacts
from reader_edge_runtime.errors import DatastoreError

Documents = Sequence[Sequence[int]]


FINGERPRINT = "ab" * 32
NARROW, WIDE = 500, 70_000
DOCUMENTS = [[1, 2, 3, 1, 2, 4], [2, 3, 1], [499, 0, 499]]


def build(path: Path, documents: Documents, vocab_size: int = NARROW, fingerprint: str = FINGERPRINT) -> Datastore:
    builder = DatastoreBuilder(fingerprint, vocab_size)
    for document in documents:
        builder.add(document)
        builder.end_document()
    builder.write(path, DatastoreFacts(("corpus.txt",), 1), lambda phase: None)
    return Datastore.open(path, fingerprint, vocab_size)


def longest_end(documents: Documents, context: Sequence[int], max_length: int) -> list[int]:
    """The longest end of a context that occurs inside one document."""
    for length in range(min(max_length, len(context)), 0, -1):
        end = list(context[len(context) - length :])
        if occurrences(documents, end):
            return end
    return []


def occurrences(documents: Documents, tokens: Sequence[int]) -> int:
    return sum(
        list(document[start : start + len(tokens)]) == list(tokens)
        for document in documents
        for start in range(len(document) - len(tokens) + 1)
    )


def successors(documents: Documents, tokens: Sequence[int]) -> list[tuple[int, int]]:
    """(token id, count) of all tokens that follow, most frequent (then lowest id) first."""
    counts = Counter(
        document[start + len(tokens)]
        for document in documents
        for start in range(len(document) - len(tokens))
        if list(document[start : start + len(tokens)]) == list(tokens)
    )
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def check_structure(datastore: Datastore) -> None:
    """Check every token, suffix and key, in linear time and about 40 bytes a token. Raises DatastoreError."""
    header = datastore.header
    tokens = datastore.tokens.astype(np.int64)
    suffixes = datastore.suffixes.astype(np.int64)
    is_end = tokens == np.iinfo(datastore.tokens.dtype).max
    positions = np.flatnonzero(~is_end)
    _require(
        bool(is_end[-1]) and len(positions) == header.num_tokens,
        datastore,
        "its document ends are not those of its header",
    )
    _require(bool(np.all(tokens[positions] < header.vocab_size)), datastore, "it holds ids outside its vocabulary")
    _require(np.array_equal(np.sort(suffixes), positions), datastore, "its suffixes are not those of its tokens")

    # Sorted, if each suffix is not above the next: by its first token or, of equals, by the rank of the rest.
    ranks = np.full(len(tokens), header.num_tokens)
    ranks[suffixes] = np.arange(header.num_tokens)
    first, rest = tokens[suffixes], ranks[suffixes + 1]
    is_below = (first[:-1] < first[1:]) | ((first[:-1] == first[1:]) & (rest[:-1] <= rest[1:]))
    _require(bool(np.all(is_below)), datastore, "its suffixes are not sorted")

    second = np.where(is_end, 0xFFFFFFFF, tokens)[suffixes[::KEY_STEP] + 1]
    keys = np.stack([first[::KEY_STEP], second], axis=1)
    stored_keys = datastore.words[datastore.header.keys_at // 4 :].reshape(-1, 2)
    _require(np.array_equal(keys, stored_keys), datastore, "its keys are not those of its suffixes")


def _require(is_true: bool, datastore: Datastore, fault: str) -> None:
    if not is_true:
        raise DatastoreError(f"'{datastore.path}' is not sound, {fault}: do not trust this file, build it again.")

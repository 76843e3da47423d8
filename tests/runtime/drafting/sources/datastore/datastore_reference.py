"""What datastores should answer, by going through every position of every document."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from reader_edge_runtime.drafting.sources.datastore.builder import DatastoreBuilder
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.header import DatastoreFacts

Documents = Sequence[Sequence[int]]

FINGERPRINT = "ab" * 32
NARROW, WIDE = 500, 70_000
DOCUMENTS = [[1, 2, 3, 1, 2, 4], [2, 3, 1], [499, 0, 499]]


def build(path: Path, documents: Documents, vocab_size: int = NARROW, fingerprint: str = FINGERPRINT) -> Datastore:
    builder = DatastoreBuilder(fingerprint, vocab_size)
    for document in documents:
        builder.add(document)
        builder.end_document()
    builder.write(path, DatastoreFacts(("corpus.txt",), 1), lambda stage: None)
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

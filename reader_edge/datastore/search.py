"""How often each token followed a text in a datastore."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.datastore_set import DatastoreMatch, DatastoreSet
from reader_edge_runtime.text.tokenizer import Tokenizer

_MAX_MATCH = 64
_SHOWN_TOKENS = 12


@dataclass(frozen=True, slots=True)
class SearchResult:
    """matched_text: the longest suffix of the text that occurs. continuations: (count, text) of each next token."""

    matched_text: str
    num_occurrences: int
    continuations: Sequence[tuple[int, str]]


def search_datastore(path: Path, text: str, tokenizer: Tokenizer, max_continuations: int) -> SearchResult:
    """Look a text up; each next token is shown with what most often follows it. Raises DatastoreError."""
    datastores = DatastoreSet([Datastore.open(path, tokenizer.fingerprint(), tokenizer.vocab_size)])
    token_ids = tokenizer.encode(text, adds_special_tokens=False)
    match = datastores.find(token_ids, _MAX_MATCH)
    continuations = [
        (count, tokenizer.decode(_most_frequent(datastores, datastores.narrow(match, token_id), token_id)))
        for token_id, count in datastores.count_successors(match)[:max_continuations]
    ]
    matched = tokenizer.decode(token_ids[len(token_ids) - match.length :])
    return SearchResult(matched, match.num_occurrences, continuations)


def _most_frequent(datastores: DatastoreSet, match: DatastoreMatch, token_id: int) -> list[int]:
    """A token, then again and again the one that followed most often."""
    token_ids = [token_id]
    while len(token_ids) < _SHOWN_TOKENS and (children := datastores.successors(match, 1)):
        match = datastores.narrow(match, children[0][0])
        token_ids.append(children[0][0])
    return token_ids

"""What `datastore` tells: what was built, what a file says of itself, and how often each token followed a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from reader_edge.datastore.build import BuildReport
from reader_edge.terminal.console import pairs_table, phase_pairs, print_table
from reader_edge.terminal.formatting import readable_size
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.datastore_set import DatastoreMatch, DatastoreSet
from reader_edge_runtime.drafting.sources.datastore.header import DatastoreHeader
from reader_edge_runtime.text.tokenizer import Tokenizer

_MAX_MATCH = 64
_SHOWN_TOKENS = 12

_MAX_NAMES = 10


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


def print_built(report: BuildReport, out: Path) -> None:
    """Print sizes, and where the time went; print the file's name on standard output."""
    header = report.header
    pairs = [("tokens", str(header.num_tokens)), ("documents", str(header.num_documents)), ("size", _size(header))]
    print_table(pairs_table("Built", [*pairs, *phase_pairs(report.phase_seconds)]))
    click.echo(out)


def info_fields(datastore: Datastore) -> dict[str, Any]:
    """Everything the file says about itself; its checksum has been verified."""
    header = datastore.header
    return {
        "file": str(datastore.path),
        "num_tokens": header.num_tokens,
        "num_documents": header.num_documents,
        "vocab_size": header.vocab_size,
        "token_bytes": header.token_bytes,
        "num_bytes": header.file_bytes,
        "tokenizer_fingerprint": header.tokenizer_fingerprint,
        "corpus": list(datastore.facts.corpus),
        "num_corpus_files": datastore.facts.num_corpus_files,
        "checksum_verified": True,
    }


def info_lines(datastore: Datastore) -> list[tuple[str, str]]:
    """The same for people to read: names and values."""
    header, facts = datastore.header, datastore.facts
    names = list(facts.corpus[:_MAX_NAMES])
    if facts.num_corpus_files > len(names):
        names.append(f"and {facts.num_corpus_files - len(names)} more")
    return [
        ("tokens", str(header.num_tokens)),
        ("documents", str(header.num_documents)),
        ("vocabulary", f"{header.vocab_size}, {header.token_bytes} bytes an id"),
        ("size", _size(header)),
        ("tokenizer", header.tokenizer_fingerprint),
        ("corpus", ", ".join(names)),
        ("checksum", "verified"),
    ]


def _size(header: DatastoreHeader) -> str:
    return f"{readable_size(header.file_bytes)}, {header.file_bytes / header.num_tokens:.2f} bytes a token"

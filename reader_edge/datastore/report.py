"""What `datastore build`, `merge` and `info` print."""

from pathlib import Path
from typing import Any

import click

from reader_edge.datastore.build import BuildReport
from reader_edge.terminal.console import pairs_table, print_table, stage_pairs
from reader_edge.terminal.sizes import readable_size
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.header import DatastoreHeader

_MAX_NAMES = 10


def print_built(report: BuildReport, out: Path) -> None:
    """Tell sizes, and where the time went; print the file's name on standard output."""
    header = report.header
    pairs = [("tokens", str(header.num_tokens)), ("documents", str(header.num_documents)), ("size", _size(header))]
    print_table(pairs_table("Built", [*pairs, *stage_pairs(report.stage_seconds)]))
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

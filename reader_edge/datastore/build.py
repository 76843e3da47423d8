"""From corpus files to a datastore: reads, tokenises and collects them within a limit of memory."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from reader_edge.datastore.corpus import CorpusPiece, read_pieces
from reader_edge.terminal.console import byte_progress, phase_progress
from reader_edge.terminal.formatting import readable_size
from reader_edge_runtime.atomic_file import mode_of_all
from reader_edge_runtime.drafting.sources.datastore.builder import DatastoreBuilder
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.header import DatastoreFacts, DatastoreHeader
from reader_edge_runtime.errors import DatastoreError, PromptError
from reader_edge_runtime.text.tokenizer import Tokenizer

# What Python, the tokenizer and a batch of texts take beside the tokens.
_BASE_BYTES = 400_000_000
_BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What was built. phase_seconds: how long each phase took."""

    header: DatastoreHeader
    phase_seconds: Mapping[str, float]


def build_datastore(
    corpus: Sequence[Path], out: Path, tokenizer: Tokenizer, file_format: str | None, text_field: str, max_memory: int
) -> BuildReport:
    """Build `out` from the texts of corpus files, readable for users who may read all of them.

    Raises DatastoreError, InstallationError, TokenizerError.
    """
    started = time.perf_counter()
    builder = DatastoreBuilder(tokenizer.fingerprint(), tokenizer.vocab_size)
    for path in corpus:
        if not path.is_file():
            raise DatastoreError(f"'{path}' is not a regular file: give files of text.")
    num_total = sum(path.stat().st_size for path in corpus)
    num_done = 0
    with byte_progress("Tokenising") as on_progress:
        for path in corpus:
            num_bytes = path.stat().st_size
            for batch in _batches(read_pieces(path, file_format, text_field)):
                _add_batch(builder, tokenizer, batch, path)
                num_read = num_done + int(batch[-1].read_share * num_bytes)
                on_progress(num_read, num_total)
                _check_memory(builder.memory_bytes(), max_memory, num_read / max(num_total, 1))
            num_done += num_bytes
    names = tuple("".join(c if c.isprintable() else "?" for c in path.name) for path in corpus)
    facts = DatastoreFacts.merged([DatastoreFacts(names, len(names))])
    return _write(builder, out, facts, mode_of_all(corpus), "tokenising", started)


def merge_datastores(paths: Sequence[Path], out: Path, max_memory: int) -> BuildReport:
    """Build `out` from the documents of built datastores, in order; see `build_datastore`."""
    started = time.perf_counter()
    datastores = [Datastore.open(path) for path in paths]
    builder = DatastoreBuilder(datastores[0].header.tokenizer_fingerprint, datastores[0].header.vocab_size)
    _check_memory(builder.memory_bytes(sum(part.header.num_positions for part in datastores)), max_memory, 1.0)
    for part in datastores:
        builder.add_datastore(part)
    facts = DatastoreFacts.merged([part.facts for part in datastores])
    return _write(builder, out, facts, mode_of_all(paths), "reading", started)


def _batches(pieces: Iterator[CorpusPiece]) -> Iterator[list[CorpusPiece]]:
    batch: list[CorpusPiece] = []
    num_characters = 0
    for piece in pieces:
        batch.append(piece)
        num_characters += len(piece.text) + 1
        if num_characters >= _BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch


def _add_batch(builder: DatastoreBuilder, tokenizer: Tokenizer, batch: Sequence[CorpusPiece], path: Path) -> None:
    try:
        encoded = tokenizer.encode_batch([piece.text for piece in batch])
    except PromptError as error:
        raise DatastoreError(f"'{path}' cannot be tokenised: {error}") from None
    for piece, token_ids in zip(batch, encoded, strict=True):
        builder.add(token_ids)
        if piece.ends_document:
            builder.end_document()


def _check_memory(num_bytes: int, max_memory: int, done_share: float) -> None:
    """Refuse a corpus that takes more than max_memory bytes; num_bytes: what done_share of it takes."""
    if _BASE_BYTES + num_bytes > max_memory:
        estimate = _BASE_BYTES + int(num_bytes / max(done_share, 1e-9))
        raise DatastoreError(
            f"This corpus takes about {readable_size(estimate)} of memory, "
            f"more than --max-memory {readable_size(max_memory)}: raise it, or build several datastores and name all."
        )


def _write(
    builder: DatastoreBuilder, out: Path, facts: DatastoreFacts, mode: int, first_phase: str, started: float
) -> BuildReport:
    phases = [(first_phase, started)]
    with phase_progress(f"Building {out.name}") as show_phase:

        def on_phase(phase: str) -> None:
            phases.append((phase, time.perf_counter()))
            show_phase(phase)

        header = builder.write(out, facts, on_phase, mode)
    phases.append(("", time.perf_counter()))
    return BuildReport(header, {phase: end - start for (phase, start), (_, end) in pairwise(phases)})

"""`reader-edge datastore`: corpora that drafts are looked up in."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL
from reader_edge_runtime.untrusted.config_checks import Range


@dataclass(frozen=True, slots=True)
class DatastoreOptions:
    """What these commands let a user say.

    -o --out out: The new file.
    tokenizer: Whose tokenizer to use: a package, Hugging Face folder, GGUF file, model name, or a tokenizer.json.
    --format file_format: Format of all files. Default: by file name (.jsonl, .parquet, else text).
    field: The field or column that holds the text.
    max_memory: Refuse a corpus that needs more memory than this.
    force: Replace an existing datastore.
    -n --num num: Most continuations to show.
    """

    out: Annotated[Path, options.FILE_PATH]
    tokenizer: Annotated[str, MODEL, "MODEL"]
    file_format: Annotated[str | None, ("text", "jsonl", "parquet")] = None
    field: str = "text"
    max_memory: Annotated[str, options.byte_size] = "4GB"
    force: bool = False
    num: Annotated[int, Range(1, 64)] = 10


@click.group(short_help="Build and inspect datastores, to draft from.")
def datastore() -> None:
    """Build and inspect datastores: indexed corpora in which drafts are looked up."""


@helpful_command(
    "Build a datastore from files.",
    "reader-edge datastore build manual.md guide.md -o docs.ds --tokenizer smollm2:135m",
    group=datastore,
)
@click.argument("corpus", nargs=-1, required=True, type=options.FILE)
@options.of(DatastoreOptions, "out", "tokenizer", "file_format", "field", "max_memory", "force")
def build(
    corpus: tuple[Path, ...],
    out: Path,
    tokenizer: str,
    file_format: str | None,
    field: str,
    max_memory: int,
    force: bool,
) -> None:
    """Build a datastore from CORPUS files, and print its name.

    A text file is one document. If it holds ASCII record separators (0x1e), each begins a new document, and the rest of
    its line is a title, which is left out. Each line of a .jsonl file and each row of a .parquet file is a document.
    """
    _check_out(out, force)

    from reader_edge.datastore.build import build_datastore
    from reader_edge.datastore.report import print_built
    from reader_edge.models.model_source import load_tokenizer

    print_built(build_datastore(corpus, out, load_tokenizer(tokenizer), file_format, field, max_memory), out)


@helpful_command(
    "Merge datastores of the same tokenizer.", "reader-edge datastore merge docs.ds code.ds -o all.ds", group=datastore
)
@click.argument("files", nargs=-1, required=True, type=options.FILE, metavar="FILE...")
@options.of(DatastoreOptions, "out", "max_memory", "force")
def merge(files: tuple[Path, ...], out: Path, max_memory: int, force: bool) -> None:
    """Merge datastores that have the same tokenizer into one, and print its name."""
    _check_out(out, force)

    from reader_edge.datastore.build import merge_datastores
    from reader_edge.datastore.report import print_built

    print_built(merge_datastores(files, out, max_memory), out)


@helpful_command("Show what a datastore holds, and check it.", "reader-edge datastore info docs.ds", group=datastore)
@click.argument("file", type=options.FILE)
@options.as_json
def info(file: Path, as_json: bool) -> None:
    """Show what a datastore holds, and verify its checksum."""
    from reader_edge.datastore.report import info_fields, info_lines
    from reader_edge.terminal.console import byte_progress, print_pairs
    from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore

    opened = Datastore.open(file)
    with byte_progress("Checking the datastore") as on_progress:
        opened.check_body(on_progress)
    if as_json:
        click.echo(json.dumps(info_fields(opened)))
        return
    print_pairs(info_lines(opened))


@helpful_command(
    "Show what follows a text in a datastore.",
    'reader-edge datastore search docs.ds "tar -" --tokenizer smollm2:135m',
    group=datastore,
)
@click.argument("file", type=options.FILE)
@click.argument("text")
@options.of(DatastoreOptions, "tokenizer", "num")
def search(file: Path, text: str, tokenizer: str, num: int) -> None:
    """Show what follows TEXT in a datastore, most frequent first.

    If TEXT does not occur, the longest end of it that does is used. Tokens are compared, not letters. For most models,
    a word after a space is a different token, so also try TEXT with a leading space.
    """
    from reader_edge.datastore.report import search_datastore
    from reader_edge.models.model_source import load_tokenizer
    from reader_edge.terminal.console import stderr_console
    from reader_edge.terminal.model_text import accept_any_text

    found = search_datastore(file, text, load_tokenizer(tokenizer), num)
    accept_any_text()
    heading = "; how often, and what follows:" if found.continuations else ""
    stderr_console().print(f"{found.num_occurrences} found: {found.matched_text!r}{heading}", soft_wrap=True)
    width = max((len(str(count)) for count, _ in found.continuations), default=1)
    for count, continuation in found.continuations:
        click.echo(f"{count:>{width}}  {continuation!r}")


def _check_out(out: Path, force: bool) -> None:
    """Check before the work what would spoil it."""
    from reader_edge_runtime.atomic_file import check_writable, write_failure
    from reader_edge_runtime.drafting.sources.datastore.datastore import is_datastore
    from reader_edge_runtime.errors import DatastoreError

    if out.exists() and not is_datastore(out):
        raise click.UsageError(f"'{out}' exists and is not a datastore: name another file.")
    if out.exists() and not force:
        raise click.UsageError(f"'{out}' exists: add --force to replace it.")
    try:
        check_writable(out)
    except OSError as error:
        raise DatastoreError(write_failure(out, error, "build it again")) from error

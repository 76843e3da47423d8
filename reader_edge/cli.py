"""The command line: `reader-edge COMMAND`. Each command has its own file in `reader_edge.commands`.

What a command was asked for goes to standard output, everything else to standard error. Exit codes: 0 success,
1 an error or a proof that failed, 2 wrong usage, 130 interrupted.
"""

import errno
import os
import sys
import warnings
from typing import TextIO

import click

from reader_edge import __version__
from reader_edge.commands.bench import bench
from reader_edge.commands.datastore import datastore
from reader_edge.commands.export import export
from reader_edge.commands.forget import forget
from reader_edge.commands.info import info
from reader_edge.commands.run import run
from reader_edge.commands.verify import verify
from reader_edge.terminal.control_characters import visible


class CommandLine(click.Group):
    """A group of commands that tells every error a user can cause in one sentence."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(130)
        except OSError as error:
            if error.errno == errno.EPIPE:  # which click takes care of
                raise
            if error.filename is None:
                _discard_output()
            name = "The output" if error.filename is None else f"'{error.filename}'"
            raise click.ClickException(visible(f"{name} cannot be used: {error.strerror}.")) from error
        except Exception as error:
            # Looked up, not imported: without ONNX Runtime the import itself is the error to tell.
            errors = sys.modules.get("reader_edge_runtime.errors")
            if errors is None or not isinstance(error, errors.ReaderEdgeError):
                raise
            raise click.ClickException(visible(str(error))) from error


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="reader-edge")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Lossless speculative decoding for exported language models: the same text, sooner."""
    ctx.with_resource(warnings.catch_warnings())
    warnings.showwarning = _tell_warning


for command in (run, verify, info, export, datastore, forget, bench):
    main.add_command(command)


def _tell_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Tell what is wrong, and not where in the program it was noticed."""
    click.echo(f"Warning: {visible(str(message))}", err=True)


def _discard_output() -> None:
    """Send what a full device left in standard output's buffer nowhere: Python would try once more as it exits."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())

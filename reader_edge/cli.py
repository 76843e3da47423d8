"""The command line: `reader-edge COMMAND`. Each command has its own file in `reader_edge.commands`.

A command's result goes to standard output, everything else to standard error. Exit codes: 0 success,
1 an error or a proof that failed, 2 wrong usage, 130 interrupted. Usage is wrong where the command line has to be
changed: see docs/how-to/command-line.md.
"""

import errno
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click

from reader_edge import __version__
from reader_edge.commands.batch import batch
from reader_edge.commands.bench import bench
from reader_edge.commands.completion import completion
from reader_edge.commands.datastore import datastore
from reader_edge.commands.demo import demo
from reader_edge.commands.doctor import doctor
from reader_edge.commands.export import export
from reader_edge.commands.info import info
from reader_edge.commands.launch import launch
from reader_edge.commands.models import cache, list_models, pull, rm
from reader_edge.commands.package import card, package, push
from reader_edge.commands.run import run
from reader_edge.commands.serve import serve
from reader_edge.commands.split import split
from reader_edge.commands.stage import stage
from reader_edge.commands.train_drafter import train_drafter
from reader_edge.commands.tune import tune
from reader_edge.commands.verify import verify
from reader_edge.commands.warm import forget, warm
from reader_edge.entry_points import added_commands
from reader_edge.terminal.formatting import show_warning, visible


class CommandLine(click.Group):
    """A group of commands that tells every error a user can cause in one sentence."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _errors_reported():
            _replace_closed_streams()
            if sorted(args) == ["--json", "--version"]:
                from reader_edge_runtime.doctor.installation import installation_facts

                click.echo(json.dumps(installation_facts(__version__), indent=1))
                ctx.exit()
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        with _errors_reported():
            return super().invoke(ctx)


_FIRST_STEPS = """\
reader-edge demo                  watch drafting at work, with the bundled model
reader-edge run smollm2:135m      chat with a model, which is fetched and exported first
reader-edge serve smollm2:135m    serve it: OpenAI's, Anthropic's and Ollama's APIs, and a page
reader-edge doctor                see whether anything keeps this machine slow
reader-edge --help                list all commands"""


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(
    __version__,
    prog_name="reader-edge",
    help="Show the version and exit. With --json: all that a bug report needs, as one JSON object.",
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Run language models faster with lossless speculative decoding: the same text, sooner.

    \b
    Start with:
      reader-edge run smollm2:135m
    """
    if ctx.invoked_subcommand is None:
        click.echo(_FIRST_STEPS)
        return
    ctx.with_resource(warnings.catch_warnings())
    warnings.showwarning = show_warning
    # Each loss of a box or a server is reported, not the first alone; -W and PYTHONWARNINGS come before.
    warnings.filterwarnings("always", category=RuntimeWarning, module="reader_edge", append=True)


COMMANDS = (
    demo,
    run,
    serve,
    launch,
    batch,
    pull,
    list_models,
    rm,
    cache,
    verify,
    doctor,
    info,
    package,
    card,
    push,
    export,
    tune,
    warm,
    train_drafter,
    split,
    stage,
    datastore,
    forget,
    bench,
    completion,
)
for command in COMMANDS:
    main.add_command(command)
for name, command in added_commands(main.commands).items():
    main.add_command(command, name)


@contextmanager
def _errors_reported() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise _interrupted() from None
    except click.UsageError as error:
        raise _in_one_sentence(error) from error
    except OSError as error:
        if error.errno == errno.EPIPE:  # which click takes care of
            raise
        if error.filename is None:  # a full device: Python would try the buffer once more as it exits
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
        name = "The output" if error.filename is None else f"'{error.filename}'"
        remedy = ": free some space" if error.errno == errno.ENOSPC else ""
        raise click.ClickException(visible(f"{name} cannot be used: {error.strerror}{remedy}.")) from error
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # compiled modules that are loaded disguise it
            raise _interrupted() from None
        # Looked up, not imported: without ONNX Runtime the import itself is the error to tell.
        errors = sys.modules.get("reader_edge_runtime.errors")
        if errors is None or not isinstance(error, errors.ReaderEdgeError):
            raise
        if isinstance(error, errors.ConfigError):  # wrong usage, also where it is found after the options were read
            raise click.UsageError(visible(str(error))) from error
        further = " `reader-edge doctor MODEL` says more." if isinstance(error, errors.ProviderError) else ""
        raise click.ClickException(visible(f"{error}{further}")) from error


def _in_one_sentence(error: click.UsageError) -> click.UsageError:
    """Without the lines about usage and help that click tells before it; help that was requested stays."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        return error
    found = error.format_message()
    if error.ctx is not None and found.startswith("No such command") and found.endswith("'."):
        found = f"{found[:-1]}: `{error.ctx.command_path} --help` lists them."
    return click.UsageError(visible(found))


def _interrupted() -> click.exceptions.Exit:
    click.echo("Interrupted.", err=True)
    return click.exceptions.Exit(130)


def _replace_closed_streams() -> None:
    """Read nothing where standard input is closed, tell nobody where standard error is, refuse to answer nobody."""
    # These take the descriptors of the streams, which would else be given to files.
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 (as long as the process)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise click.ClickException("Standard output is closed: send it to a file, a pipe or /dev/null.")

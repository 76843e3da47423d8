"""`reader-edge launch`: a coding agent on a model that is served here."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import click

from reader_edge.commands import options
from reader_edge.launch.agents import AGENTS, AgentModel
from reader_edge.launch.local_server import (
    HOST,
    end,
    ending_with_parent,
    served_model,
    signals_held,
    started_server,
)
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

_URL = f"http://{HOST}:8000"
_ENDING_S = 10.0  # in which a client ends in order
_ROOMY = 32_000  # tokens of context, below which agents soon have no room


def _address(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.startswith(("http://", "https://")):
        raise click.BadParameter(f"{value!r} is no address of a server: give http://HOST:PORT.")
    return value and value.rstrip("/").removesuffix("/v1")


@helpful_command(
    "Run a coding agent on a model that is served here.",
    "reader-edge launch claude --model qwen3:4b",
    "reader-edge launch opencode -- run 'Explain this repository.'",
)
@click.argument("client", type=click.Choice(tuple(AGENTS)))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]...")
@click.option("--model", type=MODEL, help="The model. Default: the one of the server that runs.")
@click.option("--workspace", type=options.FOLDER, help="Draft from the text files under this folder, in a new server.")
@click.option(
    "--prefix-cache",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep prompts in this folder, in a new server, so that the next one need not read them again.",
)
@click.option("--url", callback=_address, help=f"Server to use.  [default: the one at {_URL}, or a new one]")
@click.option("--api-key-file", type=options.FILE, help="A file with the key of the server at --url.")
def launch(
    client: str,
    arguments: Sequence[str],
    model: str | None,
    workspace: Path | None,
    prefix_cache: Path | None,
    url: str | None,
    api_key_file: Path | None,
) -> None:
    """Run a coding agent on a model that is served here.

    If a server runs, its model is used. Otherwise `reader-edge serve` is started for --model, or else
    $READER_EDGE_MODEL, and stopped when the agent ends. The agent's own settings are left alone. ARGUMENTS are for the
    agent, whose exit code is passed on.
    """
    from reader_edge.remote.remote_server import read_key

    agent = AGENTS[client]
    executable = shutil.which(agent.command)
    if executable is None:
        raise click.ClickException(f"{agent.title} is not installed: `{agent.install}` installs it.")
    with ExitStack() as stack:
        stack.enter_context(_ending_in_order())
        found = served_model(url or _URL, model, read_key(api_key_file))
        if found is None and url is not None:
            raise click.UsageError(f"No server answers at {url}: start one, or leave --url out.")
        own = {"--workspace": workspace, "--prefix-cache": prefix_cache}
        given = {name: str(folder) for name, folder in own.items() if folder is not None}
        if found is not None and given:
            raise click.UsageError(
                f"A server runs at {found.url} already: leave {next(iter(given))} out, or stop it and have one started."
            )
        served = found or stack.enter_context(_started(model, [part for each in given.items() for part in each]))
        click.echo(
            f"{agent.title} runs on '{served.name}' at {served.url}: {served.context} tokens of context, "
            f"{served.max_tokens} of an answer at most.",
            err=True,
        )
        if served.context < _ROOMY:
            click.echo(
                f"'{served.name}' has a context of {served.context} tokens: agents send 10,000 to 20,000 at once, so "
                "take a model with more.",
                err=True,
            )
        if served.max_tokens < served.wanted_tokens:
            click.echo(
                f"The server gives an answer {served.max_tokens} tokens at most: agents write whole files, so start it "
                f"with --max-tokens {served.wanted_tokens}.",
                err=True,
            )
        setup = agent.setup(served, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reader-edge-"))))
        environment = {**os.environ, **_without_proxy(served.url), **setup.environment}
        code = _run([executable, *setup.arguments, *arguments], environment)
    sys.exit(code)


@contextmanager
def _started(model: str | None, given: Sequence[str]) -> Iterator[AgentModel]:
    """A server for a model, which is fetched and exported first where that is due."""
    from reader_edge.models.model_source import MODEL_VARIABLE, find_package

    options.check_server_installed()
    model = model or os.environ.get(MODEL_VARIABLE)
    if not model:
        raise click.UsageError(f"No server answers at {_URL}: name a model to serve, as --model qwen3:4b.")
    find_package(model)
    with started_server(model, given) as served:
        yield served


def _without_proxy(url: str) -> dict[str, str]:
    """Variables that have clients reach a server as it was found: through no proxy."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    hosts = given if given == "*" else ",".join(filter(None, (given, urlsplit(url).hostname)))
    return {"no_proxy": hosts, "NO_PROXY": hosts}


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """A client's exit code, as a shell has it. Ctrl-C is the client's alone."""
    with ExitStack() as stack:
        with signals_held():
            process = subprocess.Popen(command, env=environment, preexec_fn=ending_with_parent())
            stack.callback(end, process, _ENDING_S)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        stack.callback(signal.signal, signal.SIGINT, before)
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Have what was started end, too, where this process is ended, or its terminal closed."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]  # as by nohup
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""`reader-edge serve`: a model behind the HTTP interfaces of OpenAI and Ollama."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

import reader_edge
from reader_edge.commands import options
from reader_edge.entry_points import rule
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.log import FORMATS, LEVELS, log_to_stderr
from reader_edge.terminal.shell_completion import MODEL
from reader_edge_runtime.untrusted.config_checks import Range

if TYPE_CHECKING:
    from reader_edge_runtime.decoding.rule_config import RuleConfig

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where to listen, and who may ask there.

    host: Address to listen on; one that others reach needs --api-key-file.
    port: Port to listen on; 0 takes a free one.
    api_key_file: Require one of the keys in this file, one a line.
    --share-between-keys shares_between_keys: Let prompts and answers of one key's holders hasten those of
      others, who may then find out the prompts.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65535)] = 8000
    api_key_file: Annotated[Path | None, options.FILE] = None
    shares_between_keys: bool = False

    def keys(self) -> tuple[bytes, ...]:
        """The keys, of which clients send one. Raises ConfigError, and UsageError where anybody could ask."""
        from reader_edge.server.authentication import is_loopback, read_api_keys

        if self.api_key_file is not None:
            return read_api_keys(self.api_key_file)
        if not is_loopback(self.host):
            raise click.UsageError(
                f"Others reach {self.host}, so a key is required: write one to a file (`openssl rand -hex 32`) and "
                "name it with --api-key-file."
            )
        return ()


@dataclass(frozen=True, slots=True)
class Log:
    """What is logged, from which level on, and how.

    log_level: Least level of the log: 'info' has a line for each request, 'warning' for those refused or broken off.
    log_format: Lines for eyes, or a JSON object a line.
    --log-prompts logs_prompts: Have the log show the prompts, too.
    """

    log_level: Annotated[str, LEVELS] = "info"
    log_format: Annotated[str, FORMATS] = "text"
    logs_prompts: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What one answer may take.

    --max-seconds max_answer_s: Most seconds of an answer, waiting included.
    """

    max_tokens: int
    max_answer_s: Annotated[float, Range(1)] = 600.0


@helpful_command("Serve a model over OpenAI's API and Ollama's.", "reader-edge serve smollm2:135m --port 8000")
@click.argument("model", type=MODEL, required=False)
@options.of(ServerAddress)
@click.option("--name", help="Name of the model for clients. Default: the name of MODEL.")
@options.of(options.EngineFlags, "max_batch")
@options.of(options.ServingOptions)
@options.of(options.EngineFlags, "max_kv_bytes")
@click.option(
    "--strict-fields", is_flag=True, help="Refuse fields of requests that are unknown here, or have no effect."
)
@options.max_tokens(4096)
@options.of(Limits)
@options.of(Log)
@options.engine
@options.of(options.EngineFlags, "is_near_tie_guarded", "is_text_literal")
@click.option(
    "--history",
    type=options.FILE_PATH,
    help="Draft from past answers of all clients in this file, and add new ones.",
)
@options.of(options.EngineFlags, "is_calibrated", "is_drafted")
@options.of(options.Drafts)
@rule
@options.grouped(
    place=ServerAddress,
    limits=Limits,
    log=Log,
    serving="ServingConfig",
    engine_config="EngineConfig",
    sources="DraftSources",
)
def serve(
    model: str | None,
    name: str | None,
    place: ServerAddress,
    strict_fields: bool,
    limits: Limits,
    log: Log,
    serving: "reader_edge.ServingConfig",
    engine_config: "reader_edge.EngineConfig",
    sources: "reader_edge.DraftSources",
    rule: "RuleConfig | None",
) -> None:
    """Serve a model over OpenAI's API, at http://HOST:PORT/v1, and Ollama's, at /api.

    MODEL is what `reader-edge run` takes. Each client gets the answer that it would get alone. A page to chat on is at
    http://HOST:PORT/. Ctrl-C stops the server.
    """
    options.check_server_installed()

    from reader_edge.models.model_source import load_engine, model_name
    from reader_edge.server.app import make_app
    from reader_edge.server.listening import listen, open_socket
    from reader_edge.server.settings import MAX_CHOICES, ServerSettings
    from reader_edge_runtime import AsyncEngine
    from reader_edge_runtime.drafting.sources.device_source import DeviceSource

    name = name or model_name(model)
    max_choices = min(MAX_CHOICES, engine_config.max_batch + serving.max_waiting)  # more could never be taken in
    settings = ServerSettings(
        model_name=name,
        api_keys=place.keys(),
        max_tokens=limits.max_tokens,
        max_choices=max_choices,
        max_answer_s=limits.max_answer_s,
        logs_prompts=log.logs_prompts,
        shares_between_keys=place.shares_between_keys,
        refused_fields="all" if strict_fields else "none",
    )
    with log_to_stderr(log.log_level, log.log_format), open_socket(place.host, place.port) as socket:
        _LOG.info("Loading '%s'.", name)
        sources = replace(sources, extra=(*sources.extra, DeviceSource()))
        loaded = load_engine(model, engine_config, sources, rule)
        engine = AsyncEngine(loaded, serving)
        port = socket.getsockname()[1]
        host = f"[{place.host.strip('[]')}]" if ":" in place.host else place.host
        _LOG.info("Serving '%s' at http://%s:%d/v1 (Ctrl-C ends it).", name, host, port)
        listen(make_app(engine, settings), socket, engine)

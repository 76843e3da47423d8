"""`reader-edge serve`: models behind the HTTP interfaces of OpenAI, Anthropic and Ollama."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

import reader_edge
from reader_edge.commands import options
from reader_edge.entry_points import rule
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.formatting import visible
from reader_edge.terminal.log import FORMATS, LEVELS, log_to_stderr
from reader_edge.terminal.shell_completion import MODEL
from reader_edge_runtime.untrusted.config_checks import Range

if TYPE_CHECKING:
    from reader_edge_runtime.decoding.rule_config import RuleConfig

_LOG = logging.getLogger(__name__)
_SERVING = (
    "Serving %s at http://%s:%d: a page to chat on; for clients of OpenAI's with /v1 behind it, for Anthropic's and "
    "Ollama's as it is (Ctrl-C ends it)."
)


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
class Loading:
    """Which models there are, and how long they stay loaded.

    --models models_folder: Serve every package in this folder, each called as its own folder is.
    --memory max_bytes: Most bytes that loaded models take together. The ones that were used the longest time ago are
      unloaded for others. 0 is no limit.
    --idle-unload idle_s: Unload a model after so many seconds without requests. 0 keeps it.
    """

    models_folder: Annotated[Path | None, options.FOLDER] = None
    max_bytes: Annotated[int, Range(0, 2**63 - 1)] = 0
    idle_s: Annotated[float, Range(0, 10**9)] = 0.0

    def names(self, models: tuple[str, ...]) -> tuple[str | None, ...]:
        """What `run` would take for each. A package in the folder that cannot be read is left out, which is reported.

        Raises ConfigError for a folder without packages.
        """
        from reader_edge_runtime.errors import ConfigError
        from reader_edge_runtime.package.manifest import MANIFEST_NAME

        if self.models_folder is None:
            return models or (None,)
        folders = sorted(path.parent for path in self.models_folder.glob(f"[!.]*/{MANIFEST_NAME}"))
        found = [each for each in folders if _is_readable(each)]
        if not found:
            raise ConfigError(f"'{self.models_folder}' has no packages: name the folder that holds their folders.")
        return *models, *map(str, found)

    @property
    def is_any(self) -> bool:
        """Whether models may come and go, though there be one alone."""
        return self != Loading()


def _is_readable(package: Path) -> bool:
    from reader_edge_runtime.errors import ReaderEdgeError
    from reader_edge_runtime.package.model_package import ModelPackage

    try:
        ModelPackage.open(package)
    except ReaderEdgeError as error:
        click.echo(visible(f"Left out: {error}"), err=True)
        return False
    return True


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
    """What one answer may take, and how many are kept.

    --max-seconds max_answer_s: Most seconds of an answer, waiting included.
    --keep-responses max_kept_responses: Keep the last so many of /v1/responses in memory, for clients that go on from
      one by its id.
    """

    max_tokens: int
    max_reasoning_tokens: int | None
    max_answer_s: Annotated[float, Range(1)] = 600.0
    max_kept_responses: Annotated[int, Range(0, 100_000)] = 0


@helpful_command(
    "Serve models over OpenAI's API, Anthropic's and Ollama's.",
    "reader-edge serve smollm2:135m --port 8000",
    "reader-edge serve --models packages --memory 8000000000",
)
@click.argument("models", metavar="[MODEL]...", type=MODEL, nargs=-1)
@options.of(ServerAddress)
@click.option("--name", help="Name of the model for clients, where there is one. Default: the name of MODEL.")
@options.of(Loading)
@options.of(options.EngineFlags, "max_batch")
@options.of(options.ServingOptions)
@options.of(options.EngineFlags, "max_kv_bytes")
@click.option(
    "--strict-fields", is_flag=True, help="Refuse fields of requests that are unknown here, or have no effect."
)
@options.max_tokens(4096)
@options.reasoning_budget
@options.of(Limits)
@options.of(Log)
@options.mmproj_file
@options.adapters
@click.option(
    "--adapters-folder",
    type=options.FOLDER,
    metavar="DIR",
    help="Let clients load adapters from below this folder while the server runs (/v1/load_lora_adapter).",
)
@options.engine
@options.of(options.EngineFlags, "is_near_tie_guarded", "is_text_literal", "max_image_tokens")
@options.history
@options.prefix_cache
@options.of(options.EngineFlags, "is_calibrated", "is_drafted")
@options.of(options.Drafts)
@rule
@options.grouped(
    place=ServerAddress,
    loading=Loading,
    limits=Limits,
    log=Log,
    serving="ServingConfig",
    engine_config="EngineConfig",
    sources="DraftSources",
)
def serve(
    models: tuple[str, ...],
    name: str | None,
    mmproj_file: Path | None,
    adapters: dict[str, Path],
    adapters_folder: Path | None,
    place: ServerAddress,
    strict_fields: bool,
    loading: Loading,
    limits: Limits,
    log: Log,
    serving: "reader_edge.ServingConfig",
    engine_config: "reader_edge.EngineConfig",
    sources: "reader_edge.DraftSources",
    rule: "RuleConfig | None",
) -> None:
    """Serve models over OpenAI's API, at http://HOST:PORT/v1, and Anthropic's and Ollama's, at http://HOST:PORT.

    MODEL is what `reader-edge run` takes. One alone is loaded at the start; several are each loaded when a request
    names them. Each client gets the answer that it would get alone. A page to chat on is at http://HOST:PORT/. Ctrl-C
    stops the server.
    """
    options.check_server_installed()

    from reader_edge.models.model_source import finder, load_engine, model_name, with_mmproj
    from reader_edge.server.app import make_app
    from reader_edge.server.listening import listen, open_socket
    from reader_edge.server.model_pool import ModelPool
    from reader_edge.server.served_model import ServedModel
    from reader_edge.server.settings import MAX_CHOICES, ServerSettings
    from reader_edge_runtime import AsyncEngine
    from reader_edge_runtime.drafting.sources.remote_source import RemoteSource
    from reader_edge_runtime.images.decode import MISSING_PILLOW
    from reader_edge_runtime.package.model_package import ModelPackage
    from reader_edge_runtime.package.signature import check_signed

    chosen = loading.names(models)
    _check_alone(chosen, {"--name": name, "--history": sources.history, "--mmproj": mmproj_file, "--adapter": adapters})
    names, takes_adapters = [name or model_name(each) for each in chosen], bool(adapters or adapters_folder)
    max_choices = min(MAX_CHOICES, engine_config.max_batch + serving.max_waiting)  # more could never be taken in
    settings = ServerSettings(
        model_name=names[0],
        api_keys=place.keys(),
        max_tokens=limits.max_tokens,
        max_reasoning_tokens=limits.max_reasoning_tokens,
        max_choices=max_choices,
        max_answer_s=limits.max_answer_s,
        logs_prompts=log.logs_prompts,
        shares_between_keys=place.shares_between_keys,
        refused_fields="all" if strict_fields else "none",
        max_kept_responses=limits.max_kept_responses,
        adapter_paths=adapters,
        adapters_folder=adapters_folder,
    )
    with log_to_stderr(log.log_level, log.log_format), open_socket(place.host, place.port) as socket:
        port = socket.getsockname()[1]
        host = f"[{place.host.strip('[]')}]" if ":" in place.host else place.host

        def load(model: str | None) -> AsyncEngine:
            drafted = replace(sources, extra=(*sources.extra, RemoteSource()))
            engine = load_engine(model, engine_config, drafted, rule, adapters)
            if tokens_a_s := engine.decoder.planner.times.prompt_tokens_per_s():
                _LOG.info("Prompts are read at about %d tokens a second.", tokens_a_s)
            if engine.package.manifest.images is not None and find_spec("PIL") is None:
                _LOG.warning("'%s' sees images. %s", model_name(model), MISSING_PILLOW)
            return AsyncEngine(engine, serving)

        def serve_all(served: AsyncEngine | ModelPool, shown: str) -> None:
            _LOG.info(_SERVING, shown, host, port)
            listen(make_app(served, settings), socket, served)

        find = finder(engine_config, takes_adapters)
        chosen = with_mmproj(chosen[0], mmproj_file, takes_adapters), *chosen[1:]
        if len(chosen) == 1:
            find(chosen[0])  # whose error needs no line before it
            _LOG.info("Loading '%s'.", names[0])
            first = load(chosen[0])
            if not loading.is_any:
                return serve_all(first, f"'{names[0]}'")
        packages = [ModelPackage.open(find(each)) for each in chosen]
        for each in packages:  # and again when it is loaded
            check_signed(each, engine_config.signature_key)
        served = [
            ServedModel(each, package, partial(load, str(package.folder)), own_adapters=(*adapters,))
            for each, package in zip(names, packages, strict=True)
        ]
        pool = ModelPool(
            served,
            settings,
            loading.max_bytes,
            loading.idle_s or math.inf,
            engine_config.max_kv_bytes,
            engine_config.max_batch + serving.max_waiting,
        )
        if len(chosen) == 1:
            pool.take_loaded(first)
        serve_all(pool, f"{len(served)} models" if len(served) > 1 else f"'{names[0]}'")


def _check_alone(chosen: Sequence[str | None], given: Mapping[str, object]) -> None:
    """Raise UsageError for options that are of one MODEL, where several are served."""
    wrong = next((option for option, value in given.items() if value), None)
    if len(chosen) > 1 and wrong is not None:
        raise click.UsageError(
            f"{wrong} is of one MODEL, and {len(chosen)} are served: serve one alone, or leave it out."
        )

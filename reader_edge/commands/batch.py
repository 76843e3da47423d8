"""`reader-edge batch`: a file of requests in, a file of answers out."""

import asyncio
from collections.abc import Callable
from functools import partial
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

import click

import reader_edge
from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

if TYPE_CHECKING:
    from reader_edge.batch.batch import BatchBackend


@helpful_command(
    "Answer a file of requests in OpenAI's batch format.", "reader-edge batch requests.jsonl answers.jsonl smollm2:135m"
)
@click.argument("input_file", metavar="INPUT", type=options.FILE)
@click.argument("output_file", metavar="OUTPUT", type=options.FILE_PATH)
@click.argument("model", type=MODEL, required=False)
@click.option("--name", help="Name of the model in the requests. Default: the name of MODEL.")
@options.of(options.EngineFlags, "max_batch", "max_kv_bytes")
@options.max_tokens(4096)
@options.adapters
@options.engine
@options.of(options.EngineFlags, "is_near_tie_guarded", "is_text_literal", "max_image_tokens", "is_calibrated")
@options.of(options.Drafts)
@click.option("--ray", "ray_address", metavar="HOST:PORT", help="Answer on a Ray cluster, with an engine on each node.")
@options.grouped(engine_config="EngineConfig", sources="DraftSources")
def batch(
    input_file: Path,
    output_file: Path,
    model: str | None,
    name: str | None,
    max_tokens: int,
    adapters: dict[str, Path],
    engine_config: "reader_edge.EngineConfig",
    sources: "reader_edge.DraftSources",
    ray_address: str | None,
) -> None:
    """Answer a file of requests in OpenAI's batch format.

    Each line of INPUT is a JSON object with custom_id, method, url and body; a body has the fields that `serve` takes.
    Each answer becomes a line of OUTPUT as soon as it is ready. The same command resumes after an interruption or a
    kill. MODEL is what `reader-edge run` takes. A body whose model is the name of an --adapter is answered by that.
    """
    from reader_edge_runtime.errors import InstallationError

    options.check_server_installed()
    if ray_address is not None and util.find_spec("ray") is None:
        raise InstallationError("A Ray cluster needs ray, which is missing: pip install 'reader-edge[ray]'.")

    from reader_edge.batch.batch import open_batch
    from reader_edge.models.model_source import load_engine, model_name
    from reader_edge.terminal.console import count_progress

    load = partial(load_engine, model, engine_config, sources, adapters=adapters)
    with open_batch(input_file, output_file) as opened:
        if opened.num_done < opened.num_requests:
            backend = _answering(ray_address, load, name or model_name(model), max_tokens)
            with count_progress("Requests") as on_progress:
                asyncio.run(opened.answer(backend, on_progress))
        num_refused = opened.num_refused
    if num_refused:
        requests = "1 request was" if num_refused == 1 else f"{num_refused} requests were"
        click.echo(f"{requests} refused: '{output_file}' says why.", err=True)


def _answering(
    ray_address: str | None, load: "Callable[[], reader_edge.Engine]", name: str, max_tokens: int
) -> "BatchBackend":
    """An engine here, or those of a cluster."""
    if ray_address is not None:
        from reader_edge.batch.ray import RayBackend

        cluster = RayBackend(ray_address, load, name, max_tokens)
        for notice in cluster.notices:
            click.echo(f"On the cluster: {notice}", err=True)
        return cluster
    from reader_edge.batch.batch import LocalBackend

    return LocalBackend(load(), name, max_tokens)

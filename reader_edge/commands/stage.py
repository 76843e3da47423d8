"""`reader-edge stage`: one of the boxes that run a model together."""

from pathlib import Path

import click

import reader_edge
from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command


@helpful_command(
    "Serve a stage of a model over several boxes.", "reader-edge stage OUT/1 --listen tcp://127.0.0.1:5551"
)
@click.argument("package", type=click.Path(path_type=Path))
@click.option(
    "--listen",
    required=True,
    callback=options.tcp_addresses,
    help="Where the other boxes reach this one, as tcp://10.0.0.2:5551.",
)
@click.option(
    "--key", type=options.FILE, help="The key that `split` wrote. Default: the file pipeline.key beside PACKAGE."
)
@options.of(options.EngineFlags, "threads", "uses_native")
@options.signature_key
@options.grouped(engine_config="EngineConfig")
def stage(
    package: Path,
    listen: str,
    key: Path | None,
    engine_config: "reader_edge.EngineConfig",
) -> None:
    """Serve PACKAGE, one of the stages that `reader-edge split` wrote, until Ctrl-C. Needs the extra "pipeline".

    Every holder of the last stage and the key may use it. What travels is encrypted with the key, but each box sees
    tokens and activations: use your own.
    """
    from reader_edge.terminal.formatting import visible
    from reader_edge_runtime.assembly import serve_package_stage

    def on_message(line: str) -> None:
        click.echo(visible(line), err=True)

    serve_package_stage(package, listen, key, engine_config, on_message)

"""`reader-edge stage`: one of the boxes that run a model together, or all of them on a cluster."""

import signal
from collections.abc import Callable
from importlib import util
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
    "--listen", callback=options.tcp_addresses, help="Where the other boxes reach this one, as tcp://10.0.0.2:5551."
)
@click.option(
    "--key", type=options.FILE, help="The key that `split` wrote. Default: the file pipeline.key beside PACKAGE."
)
@click.option(
    "--ray",
    "ray_address",
    metavar="HOST:PORT",
    help="Place all stages of PACKAGE, the folder that `split` wrote, on the nodes of a Ray cluster.",
)
@options.of(options.EngineOptions, "threads", "uses_native")
@options.grouped(engine_config="EngineConfig")
def stage(
    package: Path,
    listen: str | None,
    key: Path | None,
    ray_address: str | None,
    engine_config: "reader_edge.EngineConfig",
) -> None:
    """Serve PACKAGE, one of the stages that `reader-edge split` wrote, until Ctrl-C. Needs the extra "pipeline".

    Whoever has the last stage and the key uses it. What travels is encrypted with the key, but each box sees tokens
    and activations: use your own. With --ray, PACKAGE is the folder of all stages, which every
    node has at the same path: all but the last are served on the cluster, and pipeline.json says where.
    """
    from reader_edge.terminal.control_characters import visible
    from reader_edge_runtime.assembly import serve_package_stage

    def tell(line: str) -> None:
        click.echo(visible(line), err=True)

    if (listen is None) == (ray_address is None) or (key is not None and listen is None):
        raise click.UsageError("Give --listen tcp://HOST:PORT, or --ray HOST:PORT; --key goes with --listen alone.")
    if listen is not None:
        serve_package_stage(package, listen, key, engine_config, tell)
    else:
        assert ray_address is not None
        _serve_on_cluster(package, ray_address, engine_config, tell)


def _serve_on_cluster(
    folder: Path, address: str, config: "reader_edge.EngineConfig", tell: Callable[[str], None]
) -> None:
    from reader_edge_runtime.errors import InstallationError

    if util.find_spec("ray") is None:
        raise InstallationError("A Ray cluster needs ray, which is missing: pip install 'reader-edge[ray]'.")
    from reader_edge.cluster.stage_cluster import StageCluster

    with StageCluster(folder, address, config, tell) as stages:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: Ray's own prints its stack
        stages.serve()

"""`reader-edge split`: a package becomes the stages of a model over several boxes."""

from pathlib import Path

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL


def _boxes(ctx: click.Context, parameter: click.Parameter, value: str | None) -> list[int]:
    """Bytes of each box."""
    return [] if value is None else [options.byte_size(ctx, parameter, each.strip()) for each in value.split(",")]


@helpful_command("Cut a package into stages, for several boxes.", "reader-edge split smollm2:135m OUT --stages 2")
@click.argument("model", type=MODEL)
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--stages", type=options.IntegerRange(2, 64), help="How many boxes run the model.  [default: those of --fit]"
)
@click.option(
    "--fit",
    "boxes",
    callback=_boxes,
    help="Memory of each box, as 8GB,16GB: none gets layers that it has no room for, beside its process.",
)
@click.option(
    "--at",
    "addresses",
    callback=options.tcp_addresses,
    help="Where the stages but the last will listen, as tcp://10.0.0.2:5551,tcp://10.0.0.3:5551; without it, ports of "
    "this machine.",
)
def split(model: str, out: Path, stages: int | None, boxes: list[int], addresses: str | None) -> None:
    """Cut MODEL, given as for `run`, between layers: OUT/1, OUT/2 and so on are packages. Needs the extra "export".

    Beside them are pipeline.json, which says where each stage is reached, and pipeline.key, a key that all boxes share.
    Copy OUT/1 and the key to the first box, and so on, and serve each with `reader-edge stage`. The last stage stays
    here: OUT is then a MODEL for `run`, `serve`, `verify` and `bench`, whose answers are those of the whole.
    """
    from reader_edge.models.model_source import find_package
    from reader_edge.terminal.console import pairs_table, print_table, share_progress
    from reader_edge.terminal.formatting import readable_size
    from reader_edge_export.split.split_package import split_package
    from reader_edge_export.split.stage_ranges import PROCESS_BYTES

    if stages is None and not boxes:
        raise click.UsageError("Say how many stages there are: --stages N, or --fit with the memory of each box.")
    if stages is not None and boxes and len(boxes) != stages:
        raise click.UsageError(f"--stages {stages} and --fit with {len(boxes)} boxes differ: give one of them.")
    places = [] if addresses is None else addresses.split(",")
    with share_progress("Splitting") as on_progress:
        report = split_package(find_package(model), out, stages or len(boxes), boxes, places, on_progress)
    pairs = []
    for manifest in report.manifests:
        part = manifest.stage
        assert part is not None
        layers = f"layers {part.first_layer} to {part.first_layer + manifest.num_layers - 1}"
        pairs.append((f"stage {part.number}", f"{layers}, {readable_size(manifest.num_bytes)}"))
    if boxes:
        pairs.append(("beside weights", f"{readable_size(PROCESS_BYTES)} of each box are left for the process"))
    print_table(pairs_table("Split", pairs))
    if report.has_left_speculator:
        click.echo("The package's trained speculator is left out: it reads layers of several stages.", err=True)
    click.echo(out)

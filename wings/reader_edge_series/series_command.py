"""`reader-edge series`: forecasts of time series, and models for them: trained, and exported to packages."""

from pathlib import Path

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge_series.forecast_command import forecast

_LESS = 3  # steps of the model for one of the small model


@helpful_command("Export a forecasting model to a package.", "reader-edge series export trained forecaster")
@click.argument("trained", type=options.FOLDER)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace an existing package.")
def export(trained: Path, out: Path, force: bool) -> None:
    """Export what `reader-edge series train` wrote to a package at OUT, and print OUT. Needs the extra "export".

    The graph is compared with the model: cached passes say what one pass over the whole series says.
    """
    from reader_edge.terminal.console import pairs_table, phase_pairs, print_table, work_progress
    from reader_edge.terminal.formatting import readable_size
    from reader_edge_export.libraries import check_installation

    check_installation()
    from reader_edge_export.progress import Progress
    from reader_edge_series.export.series_export import export_series

    with work_progress(f"Exporting {trained}") as work:
        progress = Progress(work.on_phase, work.on_progress)
        manifest = export_series(trained, out, progress, force)
    size = readable_size(sum(entry.num_bytes for entry in manifest.files.values()))
    checks = [(name, f"{error:.1e} of the largest number") for name, error in manifest.checks.items()]
    print_table(pairs_table("Exported", [("size", size), *checks, *phase_pairs(progress.seconds)]))
    click.echo(out)


@helpful_command(
    "Train a forecasting model.", "reader-edge series train electricity.csv traffic.parquet -o trained --minutes 30"
)
@click.argument("tables", nargs=-1, required=True, type=options.FILE)
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="The new folder.")
@click.option(
    "--held-out",
    default=0.2,
    show_default=True,
    type=options.FiniteRange(0, 0.9),
    help="Share of each series, its last part, that is not learned from.",
)
@click.option(
    "--steps", "num_steps", default=4000, show_default=True, type=options.IntegerRange(1), help="Steps of training."
)
@click.option("--layers", "num_layers", default=4, show_default=True, type=options.IntegerRange(1, 64), help="Layers.")
@click.option(
    "--size",
    "hidden_size",
    default=128,
    show_default=True,
    type=options.IntegerRange(32, 4096),
    help="Numbers of a patch's state, a multiple of 8.",
)
@click.option(
    "--minutes",
    default=60.0,
    show_default=True,
    type=options.FiniteRange(min=0, min_open=True),
    help="The most minutes for each of the two models, earlier runs included.",
)
def train(
    tables: tuple[Path, ...],
    out: Path,
    held_out: float,
    num_steps: int,
    num_layers: int,
    hidden_size: int,
    minutes: float,
) -> None:
    """Train a forecasting model on all series of TABLES, CSV or Parquet, and print its folder.

    Needs the extra "export". The model reads patches of eight values and says how the next ones are distributed. A
    small one learns to say the same, to draft for it. The folder OUT.training keeps progress, from which the same
    command resumes, also with other --minutes; erase it once OUT is there.
    """
    from reader_edge.terminal.console import pairs_table, phase_pairs, print_table, work_progress
    from reader_edge_export.libraries import check_installation
    from reader_edge_series.tables.table import read_table

    check_installation(("torch", "transformers", "safetensors"), "Training")
    from reader_edge_series.export.learned_parts import learned_parts

    series = {
        f"{path}: {name}": values for path in tables for name, values in read_table(path, None, ()).series.items()
    }
    parts = learned_parts(series, held_out)  # before the imports of torch, which take seconds
    from reader_edge_export.progress import Progress
    from reader_edge_series.export.train_series import SeriesTrainingOptions, train_series

    wanted = SeriesTrainingOptions(
        num_layers, hidden_size, num_steps=num_steps, draft_steps=-(-num_steps // _LESS), minutes=minutes
    )
    with work_progress("Training a forecasting model") as work:
        progress = Progress(work.on_phase, work.on_progress)
        train_series(parts, out, wanted, progress)
    print_table(pairs_table("Trained", [("learned from", f"{len(parts)} series"), *phase_pairs(progress.seconds)]))
    click.echo(out)


@click.group(short_help="Forecast time series.")
def series() -> None:
    """Forecast time series by sample paths, drafted and verified patch by patch: the law stays the same."""


for command in (forecast, train, export):
    series.add_command(command)

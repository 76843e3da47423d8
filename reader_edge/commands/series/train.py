"""`reader-edge series train`: a forecasting model, and a small one that drafts for it."""

from pathlib import Path

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command

_LESS = 3  # steps of the model for one of the small model


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
    from reader_edge.series.table import read_table
    from reader_edge.terminal.console import pairs_table, print_table, stage_pairs, work_progress
    from reader_edge_export.libraries import check_installation

    check_installation(("torch", "transformers", "safetensors"), "Training")
    from reader_edge_export.series.learned_parts import learned_parts

    series = {
        f"{path}: {name}": values for path in tables for name, values in read_table(path, None, ()).series.items()
    }
    parts = learned_parts(series, held_out)  # before the imports of torch, which take seconds
    from reader_edge_export.series.train_series import SeriesTrainingOptions, train_series
    from reader_edge_export.stages import Stages

    wanted = SeriesTrainingOptions(
        num_layers, hidden_size, num_steps=num_steps, draft_steps=-(-num_steps // _LESS), minutes=minutes
    )
    with work_progress("Training a forecasting model") as work:
        stages = Stages(work.on_stage, work.on_progress)
        train_series(parts, out, wanted, stages)
    print_table(pairs_table("Trained", [("learned from", f"{len(parts)} series"), *stage_pairs(stages.seconds)]))
    click.echo(out)

"""`reader-edge series export`: a trained forecasting model becomes a package."""

from pathlib import Path

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command


@helpful_command("Export a forecasting model to a package.", "reader-edge series export trained forecaster")
@click.argument("trained", type=options.FOLDER)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace an existing package.")
def export(trained: Path, out: Path, force: bool) -> None:
    """Export what `reader-edge series train` wrote to a package at OUT, and print OUT. Needs the extra "export".

    The graph is compared with the model: cached passes say what one pass over the whole series says.
    """
    from reader_edge.terminal.console import pairs_table, print_table, stage_pairs, work_progress
    from reader_edge.terminal.sizes import readable_size
    from reader_edge_export.libraries import check_installation

    check_installation()
    from reader_edge_export.series.series_export import export_series
    from reader_edge_export.stages import Stages

    with work_progress(f"Exporting {trained}") as work:
        stages = Stages(work.on_stage, work.on_progress)
        manifest = export_series(trained, out, stages, force)
    size = readable_size(sum(entry.num_bytes for entry in manifest.files.values()))
    checks = [(name, f"{error:.1e} of the largest number") for name, error in manifest.checks.items()]
    print_table(pairs_table("Exported", [("size", size), *checks, *stage_pairs(stages.seconds)]))
    click.echo(out)

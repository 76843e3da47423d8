"""`reader-edge tune`: the full check of a package, and its table of successors."""

import click

from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL


@helpful_command("Run the full check and build the successor table.", "reader-edge tune smollm2:135m")
@click.argument("model", type=MODEL)
@click.option(
    "--source",
    type=MODEL,
    help="What the package MODEL was exported from: a Hugging Face folder, a GGUF file or a name. Only needed for a "
    "package outside the cache.",
)
def tune(model: str, source: str | None) -> None:
    """Compare MODEL with its source, and make its table of likely next tokens to draft from. Needs the extra "export".

    MODEL is a package, a Hugging Face folder, a GGUF file or a name; what is not a package is exported first. The
    table has the likely successors of each token of the vocabulary. The package stays usable meanwhile, and
    its answers do not change. This takes minutes for a small model, more for a large one.
    """
    from reader_edge.models.model_source import find_tunable
    from reader_edge.models.store import model_around
    from reader_edge.terminal.console import pairs_table, phase_pairs, print_table, work_progress
    from reader_edge.terminal.export_report import check_pairs, glossary
    from reader_edge.terminal.formatting import visible
    from reader_edge_export.tuning import tune_package
    from reader_edge_runtime.package.manifest_file import read_manifest

    package, measured_against = find_tunable(model, source)
    with work_progress(f"Tuning {model}") as work, model_around(package).locked():
        manifest = read_manifest(package)
        if manifest.is_tuned and source is None and (manifest.is_measured or measured_against is None):
            work.on_message(f"'{model}' is tuned already.")
            click.echo(package)
            return
        report = tune_package(package, measured_against, work.on_phase, work.on_progress)
    pairs = [
        ("precision", report.manifest.precision),
        *check_pairs(report.manifest.checks),
        ("successors of", f"{report.num_table_tokens} tokens"),
        *phase_pairs(report.phase_seconds),
    ]
    print_table(pairs_table("Tuned", pairs))
    click.echo(f"What these words mean: '{glossary()}'.", err=True)
    if not report.manifest.is_measured:
        shown_model = visible(model)
        click.echo(f"`reader-edge tune {shown_model} --source SOURCE` measures its quality too.", err=True)
    if report.warning is not None:
        click.echo(f"Warning: {report.warning}", err=True)
    click.echo(package)

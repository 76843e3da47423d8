"""`reader-edge bench cost`: the pass times that tree sizes are chosen by."""

import json
from dataclasses import asdict

import click

import reader_edge
from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL


@helpful_command("Show how long a pass takes here.", "reader-edge bench cost smollm2:135m")
@click.argument("model", type=MODEL, required=False)
@click.option("--batch", default=1, show_default=True, type=options.IntegerRange(1, 64), help="Sequences in a pass.")
@options.engine
@click.option("--redo", is_flag=True, help="Measure again instead of showing cached times.")
@options.as_json
@options.grouped(config="EngineConfig")
def cost(model: str | None, batch: int, config: "reader_edge.EngineConfig", redo: bool, as_json: bool) -> None:
    """Show how long a pass over n tree nodes takes on this machine. It is measured once, then cached."""
    from reader_edge.model_source import find_package
    from reader_edge.terminal.console import count_progress, figures_table, print_report
    from reader_edge_runtime.assembly import open_package, settled_target
    from reader_edge_runtime.measuring.cost_cache import load_or_measure

    target, _ = settled_target(open_package(find_package(model)), config)
    with count_progress("Measuring passes") as on_progress:
        measured = load_or_measure(target, config.threads, batch, is_redone=redo, on_progress=on_progress)
    if as_json:
        click.echo(json.dumps(asdict(measured) | {"seconds": measured.seconds.tolist()}))
        return
    title = f"Milliseconds of a pass, {measured.batch_size} in a batch (relative to one node)"
    table = figures_table(title, "nodes", *(f"past {past}" for past in measured.pasts))
    for column, width in enumerate(measured.widths):
        table.add_row(str(width), *(f"{1e3 * t[column]:.2f} ({t[column] / t[0]:.2f})" for t in measured.seconds))
    doubt = f"In doubt: rounds were {measured.spread:.0%} apart, as they are beside other work." * measured.is_in_doubt
    print_report(table, f"A row of logits: {1e3 * measured.row_s:.3f} ms", *filter(None, [doubt]))

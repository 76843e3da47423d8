"""`reader-edge bench`: measurements of this machine, a model or a drafter; its two shortest commands."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import click

import reader_edge
from reader_edge.chat.given_sampling import MeasuredSampling
from reader_edge.commands import options
from reader_edge.commands.bench.decode import decode
from reader_edge.commands.bench.replay import replay_command
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
    from reader_edge.models.model_source import find_package
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


@helpful_command(
    "Record plain answers, to replay them.",
    "reader-edge bench record smollm2:135m --prompts prompts.jsonl -o real.jsonl",
)
@click.argument("model", type=MODEL, required=False)
@options.prompts
@click.option("-o", "--out", required=True, type=options.FILE_PATH, help="A .jsonl file.")
@options.max_tokens(256)
@options.of(MeasuredSampling)
@options.engine
@click.option("--force", is_flag=True, help="Replace an existing file.")
@options.grouped(sampling="SamplingConfig", config="GenerationConfig", engine_config="EngineConfig")
def record(
    model: str | None,
    prompts: Path | None,
    out: Path,
    config: "reader_edge.GenerationConfig",
    engine_config: "reader_edge.EngineConfig",
    force: bool,
) -> None:
    """Answer prompts plainly and record the answers, for `bench replay`.

    A line of the file is a request in the format of `bench replay`, with token ids beside the texts and the likely
    successors of each token, so that --sources may name logits too. MODEL is what `run` takes.
    """
    from reader_edge.bench.answer_recorder import record_answers
    from reader_edge.models.model_source import load_engine
    from reader_edge.prompts import VERIFY_PROMPTS, play_out, read_prompts
    from reader_edge.terminal.console import count_progress
    from reader_edge.terminal.formatting import visible
    from reader_edge_runtime.atomic_file import mode_of_all, new_file

    if out.exists() and not force:
        raise click.UsageError(f"'{out}' exists: add --force to replace it.")
    file_prompts = read_prompts(prompts or VERIFY_PROMPTS)
    engine = load_engine(model, replace(engine_config, is_calibrated=False))
    questions = play_out(engine, file_prompts, config, is_raw=False)
    mode = mode_of_all([] if prompts is None else [prompts])
    with count_progress("Answers recorded") as on_progress, new_file(out, mode, keeps_mode=False) as file:
        for number, line in enumerate(record_answers(engine, questions, config), start=1):
            file.write(f"{line}\n".encode())
            on_progress(number, len(questions))
    click.echo(visible(f"{len(questions)} answers ({config.sampling}) in '{out}'."))


@click.group()
def bench() -> None:
    """Measure this machine, a model or a drafter."""


for command in (cost, decode, record, replay_command):
    bench.add_command(command)

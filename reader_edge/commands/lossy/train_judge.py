"""`reader-edge lossy train-judge`: a judge of tokens, from what they change of a model's answers."""

from itertools import chain, count
from pathlib import Path

import click

import reader_edge
from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

_JUDGE_BYTES = 1 << 17  # of a judge of 16,000 numbers of a hidden state: found out before the work


@helpful_command(
    "Train a judge of tokens.",
    "reader-edge lossy train-judge smollm2:135m -o my.judge",
    "reader-edge lossy run smollm2:135m --rule judge --judge my.judge",
)
@click.argument("model", type=MODEL)
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The file to write.")
@click.option(
    "--tasks",
    "num_tasks",
    type=options.IntegerRange(5, 10_000),
    default=300,
    show_default=True,
    help="Tasks to learn from.",
)
@click.option(
    "--seed",
    type=options.IntegerRange(0, 2**32 - 1),
    default=1,
    show_default=True,
    help="The same seed gives the same tasks; those of `bench` are 0.",
)
@click.option("--force", is_flag=True, help="Write the judge even if the gap alone is as good, or OUT exists.")
@options.draft_model
@options.head
@options.no_speculator
@options.no_calibrate
@options.engine
@options.grouped(engine_config="EngineConfig", sources="DraftSources")
def train_judge(
    model: str,
    out: Path,
    num_tasks: int,
    seed: int,
    force: bool,
    engine_config: "reader_edge.EngineConfig",
    sources: "reader_edge.DraftSources",
) -> None:
    """Learn which drafted tokens may stand in place of MODEL's own choice, and print the judge's file.

    The model answers generated tasks. At each place the likeliest other token that is at least a tenth as likely takes
    the choice's place, and the model goes on: the token matters where the final answer is then another. A judge sees
    the gap, how sure model and draft are, and the model's hidden state. It is compared with the gap alone on
    questions, and on kinds of tasks, that it has not seen, and written only where it beats the gap on the former.

    Draft with the same sources as later. MODEL is given as for `run`.
    """
    from reader_edge.lossy.judge_report import print_trial, verdict
    from reader_edge.lossy.judge_trial import tried
    from reader_edge.lossy.mining import mined
    from reader_edge.lossy.tasks import tasks
    from reader_edge.model_source import load_engine
    from reader_edge.terminal.console import count_progress
    from reader_edge.terminal.control_characters import visible
    from reader_edge_runtime.atomic_file import check_writable, write_failure
    from reader_edge_runtime.errors import ConfigError, JudgeError
    from reader_edge_runtime.lossy.judge_figures import JudgeFigures
    from reader_edge_runtime.lossy.judge_file import JudgeFile

    if out.exists() and not force:
        raise ConfigError(f"'{out}' exists already: choose another name or replace it with --force.")
    try:
        check_writable(out, _JUDGE_BYTES)
    except OSError as error:
        raise JudgeError(write_failure(out, error, "train it again")) from error
    engine = load_engine(model, engine_config, sources)
    manifest = engine.package.manifest
    with count_progress("Tasks") as on_progress:
        trial = tried(mined(engine, tasks(num_tasks, seed), JudgeFigures(manifest, engine.tokenizer), on_progress))
    print_trial(trial)
    if not trial.beats_the_gap and not force:
        raise JudgeError(f"{verdict(trial)} Nothing is written: use `--rule relaxed`, or --force.")
    click.echo(verdict(trial), err=True)
    place = out if force else _free_name(out)
    if place != out:
        click.echo(visible(f"'{out}' appeared meanwhile, so the judge is in a file beside it."), err=True)
    JudgeFile(trial.weights).write(place, manifest)
    click.echo(place)


def _free_name(out: Path) -> Path:
    """`out`, or NAME-2 and so on where something is there: what took hours to learn is kept."""
    names = (out.with_name(f"{out.stem}-{number}{out.suffix}") for number in count(2))
    return next(each for each in chain([out], names) if not each.exists())

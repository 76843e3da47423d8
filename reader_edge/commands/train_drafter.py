"""`reader-edge train-drafter`: a small head that guesses on from a model's own thoughts."""

from pathlib import Path

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command


@helpful_command("Train a head that drafts for a model.", "reader-edge train-drafter smollm2:135m -o my.head")
@click.argument("model")
@click.option("-o", "--out", type=options.FILE_PATH, required=True, help="The file to write.")
@click.option(
    "--self",
    "num_tokens",
    type=click.IntRange(1000),
    default=200_000,
    show_default=True,
    help="How many tokens the model writes itself, as training data.",
)
@click.option(
    "--text", type=options.FILE, help="Prompts of your own, answered first; a file as `warm --prompts` takes."
)
@click.option(
    "--minutes", type=options.FiniteRange(min=0, min_open=True), help="The most minutes in all. Default: no limit."
)
@click.option("--force", is_flag=True, help="Train even if the head cannot save time, or OUT exists.")
def train_drafter(
    model: str, out: Path, num_tokens: int, text: Path | None, minutes: float | None, force: bool
) -> None:
    """Train a head for MODEL, and print the name of its file. Needs the extra "export".

    A head is a small network that predicts the next two tokens from the model's hidden states. It learns from answers
    that the model writes: to your --text prompts first, then to bundled instructions. `run --head` and `serve --head`
    draft with it; it changes speed, never a token. The folder OUT.training keeps answers and progress, from which the
    same command resumes. MODEL is as for `run`.
    """
    from reader_edge.model_source import find_package
    from reader_edge.prompt_file import read_prompts
    from reader_edge.terminal.console import pairs_table, print_table, work_progress
    from reader_edge.terminal.control_characters import visible
    from reader_edge.terminal.sizes import readable_size
    from reader_edge_export.pipeline import check_installation
    from reader_edge_runtime.errors import ConfigError

    check_installation(("torch", "onnx"), "Training")
    from reader_edge_export.heads.train_drafter import HeadTraining, TrainingOptions

    if out.exists() and not force:
        raise ConfigError(f"'{out}' exists already: choose another file or replace it with --force.")
    prompts = [] if text is None else [prompt.turns[0] for prompt in read_prompts(text)]
    package = find_package(model)
    with work_progress(f"Training a head for {model}") as work:
        training = HeadTraining(package, out.absolute(), TrainingOptions(num_tokens, minutes, force), work.on_stage)
        payback = training.payback()
        work.tell(payback.sentence())
        report = training.run(prompts, payback, work.on_progress)
    acceptance, num_steps = report.acceptance, report.curve[-1][0] if report.curve else report.num_planned
    told = f"the time ended after {num_steps} of {report.num_planned} steps: more --minutes bring more"
    pairs = [
        ("learned from", f"{report.num_tokens} tokens"),
        ("can guess", f"{report.num_ids} tokens of the vocabulary"),
        ("size", readable_size(report.num_bytes)),
        ("next token", f"{acceptance.first_top1:.3f} by the best guess, {acceptance.first_top4:.3f} by the best four"),
        ("the one after", f"{acceptance.second_top1:.3f}, {acceptance.second_top4:.3f}, where the first was guessed"),
        ("measured on", f"{acceptance.num_places} places of answers held out"),
        ("loss", ", ".join(f"{loss:.2f} at step {step}" for step, loss in report.curve) or "trained before"),
        *([("cut short", told)] if num_steps < report.num_planned else []),
        ("time", f"{report.seconds:.0f} s"),
    ]
    print_table(pairs_table("Head", pairs))
    folder = visible(f"'{report.folder}'")
    click.echo(f"What it learned from stays in {folder} for another training: erase it if none is to come.", err=True)
    click.echo(report.out)

"""`reader-edge train-drafter`: a speculator, a small network that predicts tokens from a model's hidden states."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

if TYPE_CHECKING:
    from reader_edge_export.speculators.training.chains import DepthAcceptance

_FORMATS = ("mlp", "eagle3", "mtp", "dflash")


@helpful_command(
    "Train a speculator that drafts for a model.",
    "reader-edge train-drafter qwen2.5:0.5b -o my.mlp",
    "reader-edge train-drafter qwen2.5:3b -o my.eagle3 --format eagle3",
)
@click.argument("package", type=MODEL)
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option(
    "--format",
    "format_name",
    type=click.Choice(_FORMATS),
    default="mlp",
    show_default=True,
    help="mlp: a hidden layer, in minutes. eagle3, mtp: a decoder layer, in hours; mtp has the model's logit head. "
    "dflash: two layers that draft a block in one pass, in hours.",
)
@click.option(
    "--tokens",
    "num_tokens",
    type=options.IntegerRange(1000),
    default=200_000,
    show_default=True,
    help="How many tokens the model writes itself, as training data: those of 16 answers at least.",
)
@click.option(
    "--text", type=options.FILE, help="Prompts of your own, answered first; a file as `warm --prompts` takes."
)
@click.option(
    "--minutes", type=options.FiniteRange(min=0, min_open=True), help="The most minutes in all. Default: no limit."
)
@click.option("--force", is_flag=True, help="Train even if it cannot save time, or OUT exists.")
def train_drafter(
    package: str, out: Path, format_name: str, num_tokens: int, text: Path | None, minutes: float | None, force: bool
) -> None:
    """Train a small network that drafts for PACKAGE, and print its folder. Needs the extra "export".

    A speculator predicts further tokens from the model's hidden states for as long as that pays;
    `export SOURCE NEW --speculator OUT` puts it into a package. It learns from answers that the model writes: to your
    --text prompts first, then to bundled instructions. It changes speed, never a token. The folder OUT.training keeps
    answers and progress, from which the same command resumes: 2 KB a token and more. PACKAGE is what `run` takes as
    MODEL.
    """
    from reader_edge.models.model_source import find_package
    from reader_edge.prompts import read_prompts
    from reader_edge.terminal.console import pairs_table, print_table, work_progress
    from reader_edge.terminal.formatting import readable_size, visible
    from reader_edge_export.libraries import check_installation
    from reader_edge_runtime.assembly import open_package
    from reader_edge_runtime.errors import ConfigError

    if out.exists() and not (force and out.is_dir()):  # before the imports of torch, which take seconds
        remedy = "choose another name" if force else "choose another name or replace it with --force"
        raise ConfigError(f"'{out}' {'is a file' if force else 'exists already'}: {remedy}.")
    check_installation(("torch", "onnx"), "Training")
    from reader_edge_export.speculators.training.record_answers import check_prompts
    from reader_edge_export.speculators.training.speculator_folder import check_folder
    from reader_edge_export.speculators.training.train_speculator import (
        TRAINED_FORMATS,
        SpeculatorTraining,
        TrainingOptions,
    )

    check_folder(out.absolute(), force)  # before the work
    prompts = {} if text is None else {prompt.place: prompt.turns[0] for prompt in read_prompts(text)}
    folder, wanted = find_package(package), TrainingOptions(num_tokens, minutes, force)
    if prompts:
        check_prompts(open_package(folder), prompts)  # before the work
    with _resume_hint(out), work_progress(f"Training a speculator for {package}") as work:
        training = SpeculatorTraining(
            folder, out.absolute(), TRAINED_FORMATS[format_name], wanted, work.on_phase, work.on_message
        )
        cost = training.cost()
        work.on_message(cost.sentence())
        if not cost.pays_off:
            reason = "because of --force" if force else "because it had begun"
            work.on_message(f"This will not pay here; training goes on {reason}.")
        report = training.run(list(prompts.values()), work.on_progress)
    num_steps = report.curve[-1][0] if report.curve else report.num_planned
    rest = f"the time ended after {num_steps} of {report.num_planned} steps: more --minutes bring more"
    pairs = [
        ("learned from", f"{report.num_tokens} tokens of answers and their prompts"),
        ("can name", f"{report.num_ids} tokens of the vocabulary"),
        ("size", readable_size(report.num_bytes)),
        *_depth_pairs(report.depths),
        ("loss", ", ".join(f"{loss:.2f} at step {step}" for step, loss in report.curve) or "trained before"),
        *([("cut short", rest)] if num_steps < report.num_planned else []),
        ("time", f"{report.seconds:.0f} s"),
    ]
    print_table(pairs_table("Speculator", pairs))
    answers = visible(f"'{report.folder}'")
    command = f"reader-edge export SOURCE NEW --speculator {shlex.quote(str(report.out))}"
    click.echo(f"What it learned from stays in {answers} for another training: erase it if none is to come.", err=True)
    click.echo(f"To draft with it: {visible(command)} (SOURCE: what {visible(package)} was exported from)", err=True)
    click.echo(report.out)


@contextmanager
def _resume_hint(out: Path) -> Iterator[None]:
    """Say to who interrupts a training that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        if out.with_name(f"{out.name}.training").is_dir():
            click.echo("What was written is kept: the same command resumes.", err=True)
        raise


def _depth_pairs(depths: "Sequence[DepthAcceptance]") -> list[tuple[str, str]]:
    """Of a chain's tokens in turn."""
    pairs = []
    for number, depth in enumerate(depths, start=1):
        shares = f"{depth.top1:.3f} by the best guess, {depth.top4:.3f} by the best four"
        if number > 1:
            shares = f"{depth.top1:.3f}, {depth.top4:.3f}, where those before were right"
        pairs.append((f"token {number}", shares))
    return [*pairs, ("measured on", f"{depths[0].num_places} places of answers held out")]

"""`reader-edge train-drafter`: a head or a speculator, small networks that guess on from a model's own thoughts."""

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
    from reader_edge_export.heads.acceptance import HeadAcceptance
    from reader_edge_export.speculators.training.depth_acceptance import DepthAcceptance

_FORMATS = ("mlp", "eagle3", "mtp")


@helpful_command(
    "Train a head or a speculator that drafts for a model.",
    "reader-edge train-drafter smollm2:135m -o my.head",
    "reader-edge train-drafter qwen2.5:3b -o my.eagle3 --format eagle3",
)
@click.argument("package", type=MODEL)
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="The file or folder to write.")
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    default="mlp",
    show_default=True,
    help="mlp: a head, in a file. eagle3, mtp: a speculator, in a folder; mtp uses the model's own logit head.",
)
@click.option(
    "--self",
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
    package: str, out: Path, form: str, num_tokens: int, text: Path | None, minutes: float | None, force: bool
) -> None:
    """Train a small network that drafts for PACKAGE, and print its file or folder. Needs the extra "export".

    A head predicts the next two tokens from the model's hidden states; `run --head` and `serve --head` draft with it. A
    speculator is a decoder layer that guesses on as long as it pays; `export SOURCE NEW --speculator OUT` puts it
    into a package. Both learn from answers that the model writes: to your --text prompts first, then to bundled
    instructions. They change speed, never a token. The folder OUT.training keeps answers and progress, from which the
    same command resumes: 1 to 2 KB a token of a head, 4 KB and more of a speculator. PACKAGE is what `run` takes as
    MODEL.
    """
    from reader_edge.model_source import find_package
    from reader_edge.prompt_file import read_prompts
    from reader_edge.terminal.console import pairs_table, print_table, work_progress
    from reader_edge.terminal.control_characters import visible
    from reader_edge.terminal.sizes import readable_size
    from reader_edge_export.libraries import check_installation
    from reader_edge_runtime.assembly import open_package
    from reader_edge_runtime.errors import ConfigError

    if out.exists() and not force:  # before the imports of torch, which take seconds
        raise ConfigError(f"'{out}' exists already: choose another name or replace it with --force.")
    check_installation(("torch", "onnx"), "Training")
    from reader_edge_export.heads.answering import check_prompts
    from reader_edge_export.heads.train_drafter import HeadReport, HeadTraining, check_place
    from reader_edge_export.heads.training_options import TrainingOptions
    from reader_edge_export.speculators.training.speculator_folder import check_folder
    from reader_edge_export.speculators.training.train_speculator import TRAINED_FORMATS, SpeculatorTraining

    if force and out.exists() and out.is_dir() != (form in TRAINED_FORMATS):
        raise ConfigError(f"'{out}' is {'a folder' if out.is_dir() else 'a file'}: choose another name.")
    (check_folder if form in TRAINED_FORMATS else check_place)(out.absolute(), force)  # before the work
    prompts = {} if text is None else {prompt.place: prompt.turns[0] for prompt in read_prompts(text)}
    folder, wanted = find_package(package), TrainingOptions(num_tokens, minutes, force)
    if prompts:
        check_prompts(open_package(folder), prompts)  # before the work
    noun = "head" if form == "mlp" else "speculator"
    with _kept_told(out), work_progress(f"Training a {noun} for {package}") as work:
        training: HeadTraining | SpeculatorTraining
        if form == "mlp":
            training = HeadTraining(folder, out.absolute(), wanted, work.on_stage, work.tell)
        else:
            kind = TRAINED_FORMATS[form]
            training = SpeculatorTraining(folder, out.absolute(), kind, wanted, work.on_stage, work.tell)
        work.tell(training.payback().sentence())
        report = training.run(list(prompts.values()), work.on_progress)
    num_steps = report.curve[-1][0] if report.curve else report.num_planned
    told = f"the time ended after {num_steps} of {report.num_planned} steps: more --minutes bring more"
    pairs = [
        ("learned from", f"{report.num_tokens} tokens of answers{'' if form == 'mlp' else ' and their prompts'}"),
        ("can guess", f"{report.num_ids} tokens of the vocabulary"),
        ("size", readable_size(report.num_bytes)),
        *(_acceptance_pairs(report.acceptance) if isinstance(report, HeadReport) else _depth_pairs(report.depths)),
        ("loss", ", ".join(f"{loss:.2f} at step {step}" for step, loss in report.curve) or "trained before"),
        *([("cut short", told)] if num_steps < report.num_planned else []),
        ("time", f"{report.seconds:.0f} s"),
    ]
    print_table(pairs_table(noun.capitalize(), pairs))
    lessons = visible(f"'{report.folder}'")
    click.echo(f"What it learned from stays in {lessons} for another training: erase it if none is to come.", err=True)
    click.echo(f"To draft with it: {visible(_next_command(form, package, report.out))}", err=True)
    click.echo(report.out)


@contextmanager
def _kept_told(out: Path) -> Iterator[None]:
    """Tell who interrupts a training that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        if out.with_name(f"{out.name}.training").is_dir():
            click.echo("What was written is kept: the same command resumes.", err=True)
        raise


def _next_command(form: str, package: str, out: Path) -> str:
    path = shlex.quote(str(out))
    if form == "mlp":
        return f"reader-edge run {shlex.quote(package)} --head {path}"
    return f"reader-edge export SOURCE NEW --speculator {path} (SOURCE: what {package} was exported from)"


def _acceptance_pairs(acceptance: "HeadAcceptance") -> list[tuple[str, str]]:
    first = f"{acceptance.first_top1:.3f} by the best guess, {acceptance.first_top4:.3f} by the best four"
    second = f"{acceptance.second_top1:.3f}, {acceptance.second_top4:.3f}, where the first was guessed"
    places = f"{acceptance.num_places} places of answers held out"
    return [("next token", first), ("the one after", second), ("measured on", places)]


def _depth_pairs(depths: "Sequence[DepthAcceptance]") -> list[tuple[str, str]]:
    """Of a chain's tokens in turn."""
    pairs = []
    for number, depth in enumerate(depths, start=1):
        told = f"{depth.top1:.3f} by the best guess, {depth.top4:.3f} by the best four"
        if number > 1:
            told = f"{depth.top1:.3f}, {depth.top4:.3f}, where those before were right"
        pairs.append((f"token {number}", told))
    return [*pairs, ("measured on", f"{depths[0].num_places} places of answers held out")]

"""`reader-edge verify`: the proof that drafting changes nothing."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

import reader_edge
from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

if TYPE_CHECKING:
    from reader_edge.prompts import EvalPrompt


@helpful_command("Prove that drafting changes no token.", "reader-edge verify smollm2:135m --minutes 5")
@click.argument("model", type=MODEL, required=False)
@options.prompts
@options.max_tokens(96)
@click.option(
    "--minutes",
    type=options.FiniteRange(min=0),
    default=2.0,
    show_default=True,
    help="Most minutes of the proof; the default sources come first. 0 compares every combination and prompt.",
)
@click.option(
    "--past",
    type=options.IntegerRange(0),
    default=0,
    help="Tokens before each answer: texts of other prompts stand before its own. Where the context holds fewer, "
    "answers go on to its end. Prompts take longer then: give more --minutes.",
)
@click.option(
    "--certificate",
    type=options.FILE_PATH,
    help="Write what was proven to FILE, as JSON, for others. A FILE that is there is checked instead, by a sample.",
)
@options.of(options.Drafts, "workspace", "draft_model", "draft_context", "has_speculator")
@options.adapters
@options.engine
@options.of(options.EngineFlags, "is_near_tie_guarded")
@options.as_json
@options.grouped(engine_config="EngineConfig", sources="DraftSources")
def verify(
    model: str | None,
    prompts: Path | None,
    max_tokens: int,
    minutes: float,
    past: int,
    certificate: Path | None,
    adapters: dict[str, Path],
    sources: "reader_edge.DraftSources",
    engine_config: "reader_edge.EngineConfig",
    as_json: bool,
) -> None:
    """Prove that drafted decoding gives the tokens of plain decoding.

    It compares every token of greedy and sampled answers, made alone, in a batch, and in requests that arrive at random
    moments and are sometimes cancelled. First it drafts from the default sources; then from every combination of
    sources, beside a source that proposes nonsense, and with a drafter that knows the answers and hides them among
    wrong branches. Greedy answers are decoded twice: from the graph's best token ids, as usual, and from its logits, to
    compare their bits. Models that see are also given questions about drawn images. With --adapter, questions have the
    adapters in turn, and none, side by side in each batch.

    Each of these ways gets a share of --minutes. A table shows how many prompts each compared. Ctrl-C ends the proof
    early and shows what was covered.

    The exit code is 1 if a token differs, if a bit differs in an 'exact' package, or if no draft was verified.

    A certificate has the package's checksum, the processor, the kernels, what was compared, and a few answers. To check
    one, these are decoded again, plainly and drafted. On a machine like the one that wrote it they must be the same to
    the bit.
    """
    from reader_edge.models.model_source import further_sources, load_engine
    from reader_edge.prompts import VERIFY_PROMPTS, play_out, read_prompts
    from reader_edge.terminal.console import print_table, share_progress
    from reader_edge.terminal.formatting import visible
    from reader_edge.verify.certificate import write_certificate
    from reader_edge.verify.proof import ProofListener, prove
    from reader_edge.verify.report import (
        estimate_sentence,
        not_covered_sentence,
        proof_fields,
        proof_table,
        proof_verdict,
    )
    from reader_edge.verify.variants import TimeBudget
    from reader_edge_runtime import GenerationConfig, SamplingConfig

    if _is_checked(model, certificate, adapters, engine_config, as_json):
        return
    file_prompts = read_prompts(prompts or VERIFY_PROMPTS)
    # Measured pass times would leave drafts out, and with them their proof.
    engine = load_engine(model, replace(engine_config, is_calibrated=False), adapters=adapters)
    if not engine.draft_permission.is_on:
        click.echo("The proof drafts all the same, to show what drafts would change.", err=True)
    _note_clipped(past, engine.context_length)
    further = further_sources(engine, sources)
    budget = TimeBudget(60 * minutes or math.inf)
    playing_end = budget.end_of(1 / 4)
    config = GenerationConfig(max_tokens=max_tokens, sampling=SamplingConfig())
    questions = play_out(engine, file_prompts, config, True, lambda: budget.elapsed_s >= playing_end)
    if num_left := sum(len(each.turns) for each in file_prompts) - len(questions):
        click.echo(f"{num_left} later turns of conversations are left out: give more --minutes.", err=True)
    questions += _about_images(engine, questions, config)
    with share_progress("Comparing") as on_progress:
        listener = ProofListener(
            on_progress, lambda seconds: click.echo(estimate_sentence(seconds, budget.seconds), err=True)
        )
        report = prove(engine, questions, max_tokens, further, budget, listener, past=past)
    if certificate is not None:
        write_certificate(certificate, engine, report, max_tokens)
        click.echo(visible(f"The certificate is '{certificate}'."), err=True)
    if as_json:
        click.echo(json.dumps(proof_fields(engine, report)))
    else:
        print_table(proof_table(report))
        if left_out := not_covered_sentence(report):
            click.echo(left_out, err=True)
        for line in proof_verdict(engine, report):
            click.echo(line)
    if not report.is_promise_kept:
        raise click.exceptions.Exit(1)
    if report.is_interrupted:
        raise click.exceptions.Exit(130)


def _is_checked(
    model: str | None,
    certificate: Path | None,
    adapters: dict[str, Path],
    engine_config: "reader_edge.EngineConfig",
    as_json: bool,
) -> bool:
    """Check a certificate that is there; whether there is one. Raises UsageError for one of adapters."""
    if certificate is not None and adapters:
        raise click.UsageError("A certificate is of a package alone: leave --adapter out.")
    if certificate is None or not certificate.exists():
        return False
    _check_certificate(model, certificate, replace(engine_config, is_calibrated=False), as_json)
    return True


def _note_clipped(past: int, context_length: int) -> None:
    if past > context_length:
        click.echo(f"The context has {context_length} tokens, which {past} before an answer only fill.", err=True)


def _about_images(
    engine: "reader_edge.Engine", questions: "list[EvalPrompt]", config: "reader_edge.GenerationConfig"
) -> "list[EvalPrompt]":
    """Further questions, of models that see."""
    from reader_edge.verify.drawn_images import questions_about_images

    found, refusals = questions_about_images(engine, questions, config)
    for refusal in refusals:
        click.echo(f"A question about images is left out: {refusal}", err=True)
    return found


def _check_certificate(model: str | None, path: Path, engine_config: "reader_edge.EngineConfig", as_json: bool) -> None:
    from msgspec import to_builtins

    from reader_edge.models.model_source import load_engine
    from reader_edge.terminal.console import print_pairs
    from reader_edge.verify.certificate import check_certificate, check_pairs, check_verdict, read_certificate

    certificate = read_certificate(path)  # before a model is loaded for it
    check = check_certificate(certificate, path, load_engine(model, engine_config))
    if as_json:
        click.echo(json.dumps(to_builtins(check) | {"is_kept": check.is_kept}))
    else:
        print_pairs(check_pairs(check))
        click.echo(check_verdict(check))
    if not check.is_kept:
        raise click.exceptions.Exit(1)

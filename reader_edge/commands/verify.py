"""`reader-edge verify`: the proof that drafting changes nothing."""

import json
import math
from dataclasses import replace
from pathlib import Path

import click

import reader_edge
from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL


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
@options.of(options.Drafts, "workspace", "draft_model", "draft_context", "has_speculator")
@options.engine
@options.of(options.EngineFlags, "is_near_tie_guarded")
@options.as_json
@options.grouped(engine_config="EngineConfig", sources="DraftSources")
def verify(
    model: str | None,
    prompts: Path | None,
    max_tokens: int,
    minutes: float,
    sources: "reader_edge.DraftSources",
    engine_config: "reader_edge.EngineConfig",
    as_json: bool,
) -> None:
    """Prove that drafted decoding gives the tokens of plain decoding.

    It compares every token of greedy and sampled answers, made alone, in a batch, and in requests that arrive at random
    moments and are sometimes cancelled. First it drafts from the default sources; then from every combination of
    sources, beside a source that proposes nonsense, and with a drafter that knows the answers and hides them among
    wrong branches. Greedy answers are decoded twice: from the graph's best token ids, as usual, and from its logits, to
    compare their bits.

    Each of these ways gets a share of --minutes. A table shows how many prompts each compared. Ctrl-C ends the proof
    early and shows what was covered.

    The exit code is 1 if a token differs, if a bit differs in an 'exact' package, or if no draft was verified.
    """
    from reader_edge.models.model_source import further_sources, load_engine
    from reader_edge.prompts import VERIFY_PROMPTS, play_out, read_prompts
    from reader_edge.terminal.console import print_table, share_progress
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

    file_prompts = read_prompts(prompts or VERIFY_PROMPTS)
    # Measured pass times would leave drafts out, and with them their proof.
    engine = load_engine(model, replace(engine_config, is_calibrated=False))
    if not engine.draft_permission.is_on:
        click.echo("The proof drafts all the same, to show what drafts would change.", err=True)
    further = further_sources(engine, sources)
    budget = TimeBudget(60 * minutes or math.inf)
    playing_end = budget.end_of(1 / 4)
    config = GenerationConfig(max_tokens=max_tokens, sampling=SamplingConfig())
    questions = play_out(engine, file_prompts, config, True, lambda: budget.elapsed_s >= playing_end)
    if num_left := sum(len(each.turns) for each in file_prompts) - len(questions):
        click.echo(f"{num_left} later turns of conversations are left out: give more --minutes.", err=True)
    with share_progress("Comparing") as on_progress:
        listener = ProofListener(
            on_progress, lambda seconds: click.echo(estimate_sentence(seconds, budget.seconds), err=True)
        )
        report = prove(engine, questions, max_tokens, further, budget, listener)
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

"""`reader-edge verify`: the proof that drafting changes nothing."""

import json
from dataclasses import replace
from pathlib import Path

import click

import reader_edge
from reader_edge.commands import options


@click.command()
@click.argument("model", required=False)
@options.prompts
@click.option("-n", "--max-tokens", default=96, show_default=True, help="Tokens of each answer.")
@options.head
@options.draft_model
@options.engine
@options.guard
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@options.grouped(engine_config="EngineConfig")
def verify(
    model: str | None,
    prompts: Path | None,
    max_tokens: int,
    head: Path | None,
    draft_model: str | None,
    engine_config: "reader_edge.EngineConfig",
    as_json: bool,
) -> None:
    """Prove that drafted decoding gives what plain decoding gives.

    Compares every token for every combination of sources of drafts (datastores too: one is built from answers), beside
    a source that talks nonsense, and for a drafter that knows the answers and hides them among wrong branches; alone
    and in a batch. Greedy answers are decoded twice: from the graph's best token ids, as always, and from its logits;
    there, and in sampled answers, the bits of every logit row a token was chosen from are compared too. Then requests
    come at random moments beside others, some behind long texts, and some are given up. Exit code 1 when a token
    differs, or a bit where the package's attention is 'exact'.
    """
    from reader_edge.model_source import further_sources, load_engine
    from reader_edge.prompt_file import VERIFY_PROMPTS, read_prompts
    from reader_edge.proof.proof import prove
    from reader_edge.proof.report import proof_fields, proof_table, proof_verdict
    from reader_edge.question import play_out
    from reader_edge.terminal.console import count_progress, print_table
    from reader_edge_runtime import GenerationConfig

    file_prompts = read_prompts(prompts or VERIFY_PROMPTS)
    # Measured pass times would leave drafts out, and with them their proof.
    engine = load_engine(model, replace(engine_config, is_calibrated=False))
    if not engine.draft_permission.is_on:
        click.echo("The proof drafts all the same, to show what drafts would change.", err=True)
    questions = play_out(engine, file_prompts, GenerationConfig(max_tokens=max_tokens), is_raw=True)
    further = further_sources(engine, head, draft_model)
    with count_progress("Answers compared") as on_progress:
        report = prove(engine, questions, max_tokens, on_progress, further)
    if as_json:
        click.echo(json.dumps(proof_fields(engine, report)))
    else:
        print_table(proof_table(report))
        for line in proof_verdict(engine, report):
            click.echo(line)
    if not report.is_promise_kept:
        raise click.exceptions.Exit(1)

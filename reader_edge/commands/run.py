"""`reader-edge run`: answer a prompt, or chat."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reader_edge.commands import options

if TYPE_CHECKING:
    from reader_edge_runtime import Engine, GenerationConfig
    from reader_edge_runtime.engine import Prompt


@click.command()
@click.argument("model", required=False)
@click.argument("dash", required=False, type=click.Choice(["-"]), metavar="[-]")
@click.option("-p", "--prompt", help="The prompt; '-' reads it from standard input.")
@click.option("-s", "--system", help="A system message, for models with a chat template.")
@click.option("-n", "--max-tokens", default=512, show_default=True, help="New tokens at most.")
@options.temperature
@click.option("--top-k", default=0, show_default=True, help="Keep the k most likely tokens; 0 is off.")
@options.top_p
@click.option("--min-p", default=0.0, show_default=True, help="Drop tokens below this share of the best; 0 is off.")
@click.option("--repetition-penalty", default=1.0, show_default=True, help="1 is off.")
@options.seed
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; may be repeated.")
@options.threads
@options.no_native
@options.provider
@options.guard
@click.option(
    "--history",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draft from past answers in this file and add new ones; `reader-edge forget FILE` erases it.",
)
@click.option("--no-calibrate", is_flag=True, help="Assume pass times instead of measuring this machine once.")
@click.option("--no-draft", is_flag=True, help="Decode plainly, one token a pass.")
@options.datastores
@click.option("--raw", is_flag=True, help="Continue the prompt as plain text, without the chat template.")
@click.option("--stats", is_flag=True, help="Tell speed and acceptance after the answer, on standard error.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@click.option("--compare", is_flag=True, help="Answer plainly and drafted in turn; tell both speeds.")
def run(
    model: str | None,
    dash: str | None,
    prompt: str | None,
    system: str | None,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    seed: int,
    stop: tuple[str, ...],
    threads: int,
    no_native: bool,
    provider: str | None,
    guard: bool,
    history: Path | None,
    no_calibrate: bool,
    no_draft: bool,
    datastores: tuple[str, ...],
    raw: bool,
    stats: bool,
    as_json: bool,
    compare: bool,
) -> None:
    """Answer a prompt; without one, chat on a terminal.

    MODEL is a package folder, or a Hugging Face folder or id, which is exported once. Without MODEL:
    $READER_EDGE_MODEL, else the bundled demo. A lone '-' reads the prompt from standard input, and so does a pipe.
    """
    if model == "-":
        model, dash = None, "-"
    if dash and prompt is not None:
        raise click.UsageError("Give the prompt with -p or on standard input, not both.")
    if compare and no_draft:
        raise click.UsageError("--compare decodes both ways: leave --no-draft out.")
    if compare and history:
        raise click.UsageError("--compare starts each round without past answers: leave --history out.")
    text = _prompt_text("-" if dash else prompt)
    if text is None and (as_json or compare):
        raise click.UsageError("--json and --compare need a prompt: give one with -p.")

    from reader_edge.model_source import load_engine
    from reader_edge_runtime import EngineConfig, GenerationConfig, SamplingConfig

    sampling = SamplingConfig(
        repetition_penalty=repetition_penalty,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
    )
    config = GenerationConfig(
        max_tokens=max_tokens,
        sampling=sampling,
        stop=stop,
        is_drafted=not no_draft,
        is_scored=stats or as_json,
    )
    engine_config = EngineConfig(
        threads=threads,
        provider=provider,
        is_near_tie_guarded=guard,
        is_calibrated=not no_calibrate,
        uses_native=not no_native,
    )
    engine = load_engine(model, engine_config, history, datastores)
    if text is None:
        _chat(engine, config, system, raw, stats)
        return

    from reader_edge.chat.answer import build_prompt

    built = build_prompt(engine, text, system, raw)
    if compare:
        _compare(engine, built, config, stats, as_json)
    elif as_json:
        _print_json(engine, built, config)
    else:
        _print_text(engine, built, config, stats)


def _prompt_text(prompt: str | None) -> str | None:
    """The prompt as given or piped in, less one line end; None on a terminal: a chat is wanted."""
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        return None
    piped = sys.stdin.buffer.read()
    try:
        return piped.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"Standard input is not UTF-8 text (byte {error.start}).") from None


def _chat(engine: "Engine", config: "GenerationConfig", system: str | None, raw: bool, stats: bool) -> None:
    from reader_edge.chat.answer import accept_any_text
    from reader_edge.chat.chat import Chat

    accept_any_text()
    Chat(engine, config, system, raw, stats).run()


def _print_text(engine: "Engine", prompt: "Prompt", config: "GenerationConfig", stats: bool) -> None:
    from reader_edge.chat.answer import accept_any_text, print_answer
    from reader_edge.chat.answer_report import stats_table
    from reader_edge.terminal.console import print_table

    accept_any_text()
    measured = print_answer(engine, prompt, config, [], ends_line=sys.stdout.isatty())
    if stats:
        print_table(stats_table(engine, measured))


def _print_json(engine: "Engine", prompt: "Prompt", config: "GenerationConfig") -> None:
    from reader_edge.chat.answer_report import stats_fields

    result = engine.generate(prompt, config)
    fields = {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "stats": stats_fields(engine, result.stats),
    }
    click.echo(json.dumps(fields))


def _compare(engine: "Engine", prompt: "Prompt", config: "GenerationConfig", stats: bool, as_json: bool) -> None:
    from reader_edge.bench.comparison import compare
    from reader_edge.bench.comparison_report import comparison_fields, comparison_table
    from reader_edge.chat.answer import accept_any_text
    from reader_edge.chat.answer_report import stats_table
    from reader_edge.terminal.console import count_progress, print_table

    with count_progress("Preparing, then decoding both ways") as on_progress:
        comparison = compare(engine, prompt, config, on_progress=on_progress)
    if as_json:
        click.echo(json.dumps(comparison_fields(engine, comparison)))
    else:
        accept_any_text()
        click.echo(comparison.plain[0].text, nl=sys.stdout.isatty())
        print_table(comparison_table(comparison))
        if stats:
            print_table(stats_table(engine, comparison.drafted_stats))
    if not comparison.is_identical:
        raise click.ClickException(
            "Drafted and plain decoding emitted different tokens: 'reader-edge verify' shows where."
        )

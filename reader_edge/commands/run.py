"""`reader-edge run`: answer a prompt, or chat."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

import reader_edge
from reader_edge.chat.given_sampling import GivenSampling, sampling
from reader_edge.chat.prompt_input import PromptInput, dash_alone, prompt
from reader_edge.commands import options
from reader_edge.entry_points import rule
from reader_edge.remote.remote_server import RemoteServer
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

if TYPE_CHECKING:
    from reader_edge_runtime.decoding.rule_config import RuleConfig


@helpful_command(
    "Answer a prompt, or chat.",
    "reader-edge run smollm2:135m",
    'reader-edge run smollm2:135m -p "Explain tar to me." -n 200 --stats',
)
@click.argument("model", type=MODEL, required=False)
@click.argument("dash", required=False, metavar="[-]", callback=dash_alone)
@prompt
@click.option("-s", "--system", help="A system message, for models with a chat template.")
@click.option(
    "-n",
    "--max-tokens",
    type=options.MAX_TOKENS,
    default=512,
    show_default=True,
    help="The most tokens that an answer may have.",
)
@sampling
@options.stop
@options.engine
@options.guard
@options.text_is_text
@click.option(
    "--history",
    type=options.FILE_PATH,
    help="Draft from the past answers in this file, and add this one. `reader-edge forget FILE` erases it.",
)
@click.option(
    "--session",
    "session_file",
    type=options.FILE_PATH,
    help="Continue the conversation in this file. At the end, save it there with its KV cache and what drafting "
    "learned.",
)
@options.no_calibrate
@options.no_draft
@options.datastores
@options.head
@options.draft_model
@options.no_speculator
@rule
@options.template_args
@click.option("--server", metavar="URL", help="Ask a model behind `reader-edge serve` at this address.")
@click.option(
    "--drafts",
    type=click.Choice(["hints", "verify", "none"]),
    default="hints",
    show_default=True,
    help="With --server: hints: add drafts from local texts; verify: verify only this device's drafts; none.",
)
@click.option("--api-key-file", type=options.FILE, help="With --server: a file with the server's key.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    help="With --server: the model's tokenizer.json or the folder that has it, not to fetch it.",
)
@click.option("--raw", is_flag=True, help="Continue the prompt as plain text, without the chat template.")
@click.option("--stats", is_flag=True, help="Show speed and acceptance after the answer, on standard error.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@click.option("--compare", is_flag=True, help="Answer without and with drafting; show both speeds.")
# The engine's group comes first: --no-draft is its own, so that nothing is loaded to draft with.
@options.grouped(
    prompt_input=PromptInput,
    remote=RemoteServer,
    engine_config="EngineConfig",
    sources="DraftSources",
    given=GivenSampling,
    config="GenerationConfig",
)
def run(
    model: str | None,
    prompt_input: PromptInput,
    remote: RemoteServer,
    given: GivenSampling,
    config: "reader_edge.GenerationConfig",
    engine_config: "reader_edge.EngineConfig",
    sources: "reader_edge.DraftSources",
    rule: "RuleConfig | None",
    session_file: Path | None,
    stats: bool,
    as_json: bool,
    compare: bool,
) -> None:
    """Answer a prompt; without one, chat on the terminal.

    MODEL is a package, a Hugging Face folder, a GGUF file, or a name such as smollm2:135m or OWNER/NAME
    (`reader-edge pull --help`). A model that is not a package is exported once. Without MODEL, run uses
    $READER_EDGE_MODEL, or else the bundled demo. With '-', or from a pipe, the prompt is read from standard input. With
    -p TEXT, that is read only where '-' is given too: `reader-edge run MODEL -p "Summarise:" - < notes.txt`.
    """
    model, prompt_input = prompt_input.beside(model)
    _check_together(engine_config, sources, session_file, compare, rule is not None)
    remote.check(model, engine_config, compare or session_file is not None or rule is not None)
    text = prompt_input.read()
    if text is None and (as_json or compare):
        raise click.UsageError("--json and --compare need a prompt: give one with -p.")
    if remote.server is not None:
        if text is None:
            raise click.UsageError("--server needs a prompt: give one with -p.")
        config = replace(config, is_drafted=engine_config.is_drafted)
        remote.answer(prompt_input, text, config, given, sources, stats, as_json)
        return

    from reader_edge.bench.decode.comparison_report import print_compared
    from reader_edge.chat.answer import build_prompt, with_template_args
    from reader_edge.model_source import load_engine
    from reader_edge.terminal.model_text import accept_any_text

    accept_any_text()
    prompt_input.check_session(session_file)
    load = partial(load_engine, config=engine_config, sources=sources, rule=rule)
    engine = load(model)
    if not compare:
        prompt_input.answer(engine, text, config, given, session_file, stats, as_json, load)
        return
    assert text is not None
    config = replace(config, is_scored=stats or as_json, sampling=given.chosen(engine.sampling))
    prompt = build_prompt(engine, text, prompt_input.system, prompt_input.raw)
    if not print_compared(engine, with_template_args(prompt, prompt_input.template_args), config, as_json, stats):
        raise click.ClickException(options.DIFFERENT_TOKENS)


def _check_together(
    engine_config: "reader_edge.EngineConfig",
    sources: "reader_edge.DraftSources",
    session_file: Path | None,
    compare: bool,
    has_rule: bool,
) -> None:
    """Raise UsageError for options that exclude each other."""
    if compare and has_rule:
        raise click.UsageError("--compare compares exact answers: leave --rule out.")
    if compare and not engine_config.is_drafted:
        raise click.UsageError("--compare decodes both ways: leave --no-draft out.")
    if compare and (sources.history or session_file):
        raise click.UsageError("--compare starts each round without past answers: leave --history and --session out.")
    if sources.history and session_file:
        raise click.UsageError("A session keeps past answers itself: leave --history out.")

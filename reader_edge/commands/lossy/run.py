"""`reader-edge lossy run`: answer a prompt or chat, and tell what was given up for speed."""

from functools import partial
from pathlib import Path

import click

import reader_edge
from reader_edge.chat.given_sampling import GivenSampling, sampling
from reader_edge.chat.prompt_input import PromptInput, dash_alone, prompt
from reader_edge.commands import options
from reader_edge.commands.lossy.rules import AskedRule, rule
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL


@helpful_command(
    "Answer a prompt, or chat, not always as the model alone would.",
    "reader-edge lossy run smollm2:135m",
    'reader-edge lossy run smollm2:135m -p "Explain tar to me." --gap 0.69 --budget 0.02',
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
@rule
@sampling
@options.stop
@options.engine
@options.guard
@options.text_is_text
@click.option(
    "--session",
    "session_file",
    type=options.FILE_PATH,
    help="Continue the lossy conversation in this file, and save it there at the end. No exact command takes the file.",
)
@options.no_calibrate
@options.datastores
@options.head
@options.draft_model
@options.no_speculator
@options.template_args
@click.option("--raw", is_flag=True, help="Continue the prompt as plain text, without the chat template.")
@click.option("--stats", is_flag=True, help="Show speed and acceptance after the answer, on standard error.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@options.grouped(
    prompt_input=PromptInput,
    engine_config="EngineConfig",
    sources="DraftSources",
    given=GivenSampling,
    config="GenerationConfig",
    asked_rule=AskedRule,
)
def run(
    model: str | None,
    prompt_input: PromptInput,
    given: GivenSampling,
    config: "reader_edge.GenerationConfig",
    engine_config: "reader_edge.EngineConfig",
    sources: "reader_edge.DraftSources",
    asked_rule: AskedRule,
    session_file: Path | None,
    stats: bool,
    as_json: bool,
) -> None:
    """Answer a prompt; without one, chat on the terminal. MODEL is given as for `reader-edge run`.

    A drafted token may stand in place of the model's own choice. Behind each answer, standard error tells how often
    that was, how much likelier the model's choices were, and how much the answer repeats itself. Answers of --rule
    views alone are sampled or penalised. Whether a rule saves time, `reader-edge lossy bench` measures.
    """
    model, prompt_input = prompt_input.beside(model)
    asked_rule.check(click.get_current_context())
    text = prompt_input.read()
    if text is None and as_json:
        raise click.UsageError("--json needs a prompt: give one with -p.")

    from reader_edge.terminal.model_text import accept_any_text

    accept_any_text()
    prompt_input.check_session(session_file)
    load = partial(asked_rule.load, config=engine_config, sources=sources)
    prompt_input.answer(load(model), text, config, given, session_file, stats, as_json, load)

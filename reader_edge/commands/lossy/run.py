"""`reader-edge lossy run`: answer a prompt or chat, and tell what was given up for speed."""

from pathlib import Path

import click

import reader_edge
from reader_edge.commands import options
from reader_edge.commands.lossy.rules import AskedRule, rule
from reader_edge.commands.run import PromptInput
from reader_edge.terminal.command_help import helpful_command


@helpful_command(
    "Answer a prompt, or chat, faster than the model alone would.",
    "reader-edge lossy run smollm2:135m",
    'reader-edge lossy run smollm2:135m -p "Explain tar to me." --gap 0.69 --budget 0.02',
)
@click.argument("model", required=False)
@click.argument("dash", required=False, metavar="[-]")
@click.option("-p", "--prompt", help="The prompt; '-' reads it from standard input.")
@click.option("-s", "--system", help="A system message, for models with a chat template.")
@click.option("-n", "--max-tokens", default=512, show_default=True, help="The most tokens that an answer may have.")
@rule
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
    config="GenerationConfig",
    asked_rule=AskedRule,
)
def run(
    model: str | None,
    prompt_input: PromptInput,
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
    that was, how much likelier the model's choices were, and how much the answer repeats itself.
    """
    text = prompt_input.read()
    if text is None and as_json:
        raise click.UsageError("--json needs a prompt: give one with -p.")

    from reader_edge.chat.answer import accept_any_text, build_prompt, print_json, print_text, with_template_args
    from reader_edge.chat.chat import Chat
    from reader_edge.chat.kept_session import KeptSession

    accept_any_text()
    engine = asked_rule.load(model, engine_config, sources)
    session = None if session_file is None else KeptSession(engine, session_file, prompt_input.system)
    if text is None:
        said = session.messages if session else ()
        chat = Chat(engine, config, prompt_input.system, prompt_input.raw, stats, said, prompt_input.template_args)
        chat.run()
        if session is not None:
            session.save(chat.messages)
        return
    asked = build_prompt(engine, text, prompt_input.system, prompt_input.raw)
    prompt = asked if session is None else session.prompt(asked)
    whole_prompt = with_template_args(prompt, prompt_input.template_args)
    answer = print_json(engine, whole_prompt, config) if as_json else print_text(engine, whole_prompt, config, stats)
    if session is not None:
        session.save_answer(prompt, answer)

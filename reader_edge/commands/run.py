"""`reader-edge run`: answer a prompt, or chat."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import click

import reader_edge
from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command


@dataclass(frozen=True, slots=True)
class PromptInput:
    """What is asked.

    dash: "-" where standard input is to be read. raw: without the chat template, which template_args are for.
    """

    dash: str | None
    prompt: str | None
    system: str | None
    raw: bool
    template_args: dict[str, Any]

    def read(self) -> str | None:
        """The prompt as given or piped in, less one line end; None on a terminal: a chat is wanted."""
        if self.dash and self.prompt is not None:
            raise click.UsageError("Give the prompt with -p or on standard input, not both.")
        prompt = self.dash or self.prompt
        if prompt is not None and prompt != "-":
            return prompt
        if prompt is None and sys.stdin.isatty():
            return None
        piped = sys.stdin.buffer.read()
        try:
            return piped.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise click.UsageError(f"Standard input is not UTF-8 text (byte {error.start}): convert it.") from None


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """Where the model is, if it is not here; how this device drafts for it, and by which key and tokenizer."""

    server: str | None
    drafts: str
    api_key_file: Path | None
    tokenizer: Path | None

    def check(self, model: str | None, engine_config: "reader_edge.EngineConfig", has_more: bool) -> None:
        """Raise UsageError for options that have no place beside these. has_more: whether there is a session or so."""
        if self.server is None:
            if self.api_key_file or self.tokenizer:
                raise click.UsageError(
                    "--api-key-file and --tokenizer are for a model behind --server: leave them out."
                )
            return
        if model is not None:
            raise click.UsageError(f"The model is the one of {self.server}: leave {model} out.")
        if engine_config != reader_edge.EngineConfig(is_drafted=engine_config.is_drafted):
            raise click.UsageError("With --server the model runs elsewhere: leave options about running it out.")
        if has_more:
            raise click.UsageError("--session, --compare and chats are for a model that is here: leave --server out.")

    def answer(
        self,
        prompt_input: PromptInput,
        text: str,
        config: "reader_edge.GenerationConfig",
        sources: "reader_edge.DraftSources",
        shows_stats: bool,
        as_json: bool,
    ) -> None:
        """Print the server's answer."""
        from reader_edge.remote.remote_engine import RemoteEngine
        from reader_edge.remote.remote_run import RemotePrompt, read_key, run_remotely

        assert self.server is not None
        asked = RemotePrompt(text, prompt_input.system, prompt_input.raw, prompt_input.template_args)
        key = read_key(self.api_key_file)
        with RemoteEngine(self.server, key, self.drafts, sources, self.tokenizer) as engine:
            run_remotely(engine, asked, config, shows_stats, as_json)


def _dash(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The second argument, which can be a dash alone: others run a model with a prompt there."""
    if value not in (None, "-"):
        model = context.params.get("model") or "MODEL"
        raise click.UsageError(f"A prompt is given with -p: reader-edge run {quote(model)} -p {quote(value)}")
    return value


@helpful_command(
    "Answer a prompt, or chat.",
    "reader-edge run smollm2:135m",
    'reader-edge run smollm2:135m -p "Explain tar to me." -n 200 --stats',
)
@click.argument("model", required=False)
@click.argument("dash", required=False, metavar="[-]", callback=_dash)
@click.option("-p", "--prompt", help="The prompt; '-' reads it from standard input.")
@click.option("-s", "--system", help="A system message, for models with a chat template.")
@click.option("-n", "--max-tokens", default=512, show_default=True, help="The most tokens that an answer may have.")
@options.temperature
@click.option("--top-k", default=0, show_default=True, help="Sample from this many of the likeliest tokens; 0 is off.")
@options.top_p
@click.option(
    "--min-p",
    default=0.0,
    show_default=True,
    help="Drop tokens less likely than this fraction of the likeliest one's probability; 0 is off.",
)
@click.option(
    "--repetition-penalty",
    default=1.0,
    show_default=True,
    help="Above 1, make tokens that are already in prompt or answer less likely; 1 is off.",
)
@options.frequency_penalty
@options.presence_penalty
@options.seed
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
@options.template_args
@click.option("--server", metavar="URL", help="Ask a model behind `reader-edge serve` at this address.")
@click.option(
    "--drafts",
    type=click.Choice(["hints", "verify", "none"]),
    default="hints",
    show_default=True,
    help="With --server: hint at what this device knows of the text, have drafts verified in lock-step, or neither.",
)
@click.option("--api-key-file", type=options.FILE, help="With --server: a file with the server's key.")
@click.option("--tokenizer", type=options.FILE, help="With --server: the model's tokenizer.json, not to fetch it.")
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
    sampling="SamplingConfig",
    config="GenerationConfig",
)
def run(
    model: str | None,
    prompt_input: PromptInput,
    remote: RemoteServer,
    config: "reader_edge.GenerationConfig",
    engine_config: "reader_edge.EngineConfig",
    sources: "reader_edge.DraftSources",
    session_file: Path | None,
    stats: bool,
    as_json: bool,
    compare: bool,
) -> None:
    """Answer a prompt; without one, chat on the terminal.

    MODEL is a package, a Hugging Face folder, a GGUF file, or a name such as smollm2:135m or OWNER/NAME
    (`reader-edge pull --help`). A model that is not a package is exported once. Without MODEL, run uses
    $READER_EDGE_MODEL, or else the bundled demo. With '-', or from a pipe, the prompt is read from standard input.
    """
    if model == "-":
        model, prompt_input = None, replace(prompt_input, dash="-")
    _check_together(engine_config, sources, session_file, compare)
    remote.check(model, engine_config, compare or session_file is not None)
    text = prompt_input.read()
    if text is None and (as_json or compare):
        raise click.UsageError("--json and --compare need a prompt: give one with -p.")
    if remote.server is not None:
        if text is None:
            raise click.UsageError("--server needs a prompt: give one with -p.")
        config = replace(config, is_drafted=engine_config.is_drafted)
        remote.answer(prompt_input, text, config, sources, stats, as_json)
        return

    from reader_edge.bench.decode.comparison_report import print_compared
    from reader_edge.chat.answer import accept_any_text, build_prompt, print_json, print_text, with_template_args
    from reader_edge.chat.chat import Chat
    from reader_edge.chat.kept_session import KeptSession
    from reader_edge.model_source import load_engine

    accept_any_text()
    config = replace(config, is_scored=stats or as_json)
    engine = load_engine(model, engine_config, sources)
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
    if compare:
        if not print_compared(engine, whole_prompt, config, as_json, stats):
            raise click.ClickException(options.DIFFERENT_TOKENS)
        return
    answer = print_json(engine, whole_prompt, config) if as_json else print_text(engine, whole_prompt, config, stats)
    if session is not None:
        session.save_answer(prompt, answer)


def _check_together(
    engine_config: "reader_edge.EngineConfig",
    sources: "reader_edge.DraftSources",
    session_file: Path | None,
    compare: bool,
) -> None:
    """Raise UsageError for options that exclude each other."""
    if compare and not engine_config.is_drafted:
        raise click.UsageError("--compare decodes both ways: leave --no-draft out.")
    if compare and (sources.history or session_file):
        raise click.UsageError("--compare starts each round without past answers: leave --history and --session out.")
    if sources.history and session_file:
        raise click.UsageError("A session keeps past answers itself: leave --history out.")

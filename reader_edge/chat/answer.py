"""One answer on standard output, as it comes or as JSON, and a conversation that goes on in another process."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from reader_edge.chat.answer_report import stats_fields, stats_table
from reader_edge.terminal.console import late_progress, print_table
from reader_edge.terminal.model_text import ModelText
from reader_edge_runtime import Conversation, Engine, GenerationChunk, GenerationConfig, Message
from reader_edge_runtime.atomic_file import check_writable, write_failure
from reader_edge_runtime.decoding.session import check_rows
from reader_edge_runtime.errors import ConfigError, PromptError, SessionError
from reader_edge_runtime.text.conversation import Encodable, Prompt

_MARK = b"\x89redgs"  # that exact and lossy ones begin with


def build_prompt(engine: Engine, text: str, system: str | None, is_raw: bool) -> Prompt:
    """The engine's prompt: messages where the model has a chat template, the plain text otherwise.

    Raises PromptError for an empty text, and as `check_messages_options`.
    """
    if not text:
        raise PromptError("The prompt is empty: give some text with -p or on standard input.")
    if is_raw or not engine.tokenizer.has_chat_template:
        check_messages_options(engine, system, is_raw)
        return text
    return [*system_messages(system), {"role": "user", "content": text}]


def with_template_args(prompt: Prompt, args: Mapping[str, Any]) -> Encodable:
    """A prompt whose chat template is given more. Raises ConfigError where there is none."""
    if not args:
        return prompt
    if isinstance(prompt, str):
        raise ConfigError("No chat template is used here, which --template-arg is for: leave it out.")
    return Conversation(prompt, (), args)


def check_messages_options(engine: Engine, system: str | None, is_raw: bool) -> None:
    """Raise ConfigError for options of messages where a plain text is answered."""
    if engine.tokenizer.has_chat_template and not is_raw:
        return
    reason = "--raw takes the prompt as it is" if is_raw else "This model has no chat template"
    if system is not None:
        raise ConfigError(f"{reason}, so a system message has no place: leave -s out.")
    if engine.decoder.config.is_text_literal:
        raise ConfigError(f"{reason}, so control tokens in a text are read as such: leave --text-is-text out.")


def system_messages(system: str | None) -> list[Message]:
    """The messages a conversation starts with."""
    return [] if system is None else [{"role": "system", "content": system}]


def chunks_of(engine: Engine, prompt: Encodable, config: GenerationConfig) -> Iterator[GenerationChunk]:
    """An answer as it comes. While a long prompt is read, a bar on a terminal tells how much of it was."""
    with late_progress("Reading the prompt") as on_progress:
        chunks = engine.stream(prompt, config, on_progress)
        first = next(chunks)
    yield first
    yield from chunks


def print_text(engine: Engine, prompt: Encodable, config: GenerationConfig, shows_stats: bool, note: str) -> str:
    """Write the answer as it comes, and return it. note: is printed behind it, where no statistics say as much."""
    text = ModelText()
    stats = text.print_answer(chunks_of(engine, prompt, config), engine.context_length)
    if shows_stats:
        text.start_line()
        print_table(stats_table(engine, stats, config.sampling))
    elif note:
        text.start_line()
        click.echo(note, err=True)
    return "".join(text.pieces)


def print_json(engine: Engine, prompt: Encodable, config: GenerationConfig) -> str:
    """Print answer and statistics as one JSON object; returns the answer."""
    result = engine.generate(prompt, config)
    fields = {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "stats": stats_fields(engine, result.stats, result.sampling),
        **({"deviation": result.deviation} if result.deviation else {}),
    }
    click.echo(json.dumps(fields))
    return result.text


def check_session_place(path: Path) -> None:
    """Raise SessionError where a session would take the place of something else."""
    if path.is_file():
        with path.open("rb") as file:
            is_free = file.read(len(_MARK)) == _MARK
    else:
        is_free = not path.exists()
    if not is_free:
        raise SessionError(f"'{path}' is there, and no session: name another file.")


class SavedSession:
    """messages: the conversation so far, a system message included; none of a model without a chat template.

    Opening it loads the file where there is one. Raises SessionError, also for a
    model over several boxes, and ConfigError for another system message than
    it began with.
    """

    def __init__(self, engine: Engine, path: Path, system: str | None) -> None:
        self._engine = engine
        self._path = path
        check_rows(engine.decoder)
        try:
            check_writable(path)  # before an answer that could not be kept
        except OSError as error:
            raise SessionError(write_failure(path, error, "try again")) from error
        self.messages = engine.load_session(path) if path.exists() else []
        if self.messages and system is not None and self.messages[0] != system_messages(system)[0]:
            raise ConfigError(f"The session in '{path}' began with another system message: leave -s out.")

    def prompt(self, prompt: Prompt) -> Prompt:
        """The next prompt, behind the conversation so far; a plain text stands alone."""
        return prompt if isinstance(prompt, str) or not self.messages else [*self.messages, prompt[-1]]

    def save(self, messages: list[Message] | None = None) -> None:
        """Keep what the engine holds, and the conversation by now. Raises SessionError."""
        self.messages = self.messages if messages is None else messages
        self._engine.save_session(self._path, self.messages)

    def save_answer(self, prompt: Prompt, answer: str) -> None:
        """Keep the answer to a prompt too. Raises SessionError."""
        self.save(None if isinstance(prompt, str) else [*prompt, {"role": "assistant", "content": answer}])

"""The chat: a conversation on a terminal."""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import click

from reader_edge.chat.answer import check_messages_options, print_answer, system_messages, with_template_args
from reader_edge.chat.answer_report import stats_table
from reader_edge.commands.sampling import GivenSampling
from reader_edge.terminal.console import print_table
from reader_edge.terminal.control_characters import visible
from reader_edge.terminal.model_text import ModelText
from reader_edge_runtime import Engine, GenerationConfig, Message, ReaderEdgeError
from reader_edge_runtime.text.conversation import Prompt

HELP = (
    "/reset or /clear forgets the conversation, /bye, /exit, /quit or Ctrl-D leaves, Ctrl-C stops an answer, "
    "/help or /? shows this."
)
_LEAVING = ("/bye", "/exit", "/quit")
_COMMAND = re.compile(r"/([A-Za-z]+|\?)(?= |$)")  # no path, and no comment of a program
_MARK = "> "


class Chat:
    """One conversation. Without a chat template each line is a text of its own, to be continued.

    messages: what was said so far. template_args: what the chat template is given besides.
    """

    def __init__(
        self,
        engine: Engine,
        config: GenerationConfig,
        system: str | None,
        is_raw: bool,
        shows_stats: bool,
        messages: Sequence[Message] = (),
        template_args: Mapping[str, Any] = MappingProxyType({}),
        sampling: GivenSampling | None = None,
    ) -> None:
        check_messages_options(engine, system, is_raw)
        self._engine = engine
        self._config = config
        self._is_conversation = engine.tokenizer.has_chat_template and not is_raw
        self._shows_stats = shows_stats
        self._template_args = template_args
        self._sampling = sampling or GivenSampling()
        self.messages = list(messages) or system_messages(system)
        self._first_messages = [each for each in self.messages[:1] if each["role"] == "system"]

    def run(self) -> None:
        """Read lines and answer them until the user leaves."""
        with suppress(ImportError):  # on Windows, whose console edits lines itself
            import readline  # noqa: F401  (importing it gives input() editing and a history)
        kind = "Type a message" if self._is_conversation else "Type a text to continue (this is not a chat model)"
        click.echo(f"{kind}. {HELP}", err=True)
        while True:
            try:
                line = _read_line().rstrip()
            except KeyboardInterrupt:
                click.echo("\n/bye or Ctrl-D leaves.", err=True)
                continue
            except EOFError:
                click.echo(err=True)
                return
            if line in _LEAVING:
                return
            self._obey(line)

    def _obey(self, line: str) -> None:
        """Do what a line asks for. One that begins with a space is always said."""
        if line in ("/help", "/?"):
            click.echo(HELP, err=True)
        elif line in ("/reset", "/clear"):
            self.messages = list(self._first_messages)
            self._engine.forget()
        elif command := _COMMAND.match(line):
            told = visible(command[0])
            click.echo(f"There is no command {told}. To say this to the model, begin with a space. {HELP}", err=True)
        elif line.strip():
            self._answer(line.strip())

    def _answer(self, text: str) -> None:
        """Answer one line; errors are shown, and the conversation goes on without it."""
        question: Message = {"role": "user", "content": text}
        prompt: Prompt = [*self.messages, question] if self._is_conversation else text
        answer = ModelText(ends_line=True)
        try:
            told = with_template_args(prompt, self._template_args)
            config = replace(self._config, sampling=self._sampling.chosen(self._engine.sampling))
            stats = print_answer(self._engine, told, config, answer)
            if self._shows_stats:
                print_table(stats_table(self._engine, stats, config.sampling))
        except KeyboardInterrupt:
            click.echo("Stopped.", err=True)
        except ReaderEdgeError as error:
            click.echo(f"Error: {visible(str(error))}", err=True)
        if answer.pieces:
            self.messages += [question, {"role": "assistant", "content": "".join(answer.pieces)}]


def _read_line() -> str:
    if sys.stdout.isatty():
        return input(_MARK)
    click.echo(_MARK, nl=False, err=True)  # standard output is for the answers
    return input()

"""The chat: a conversation on a terminal."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import click

from reader_edge.chat.answer import check_messages_options, chunks_of, system_messages, with_template_args
from reader_edge.chat.answer_report import stats_table
from reader_edge.chat.chat_commands import HELP, LEAVING, ChatCommands, is_command
from reader_edge.chat.dropped_images import missing_images, with_dropped_images, with_read_images
from reader_edge.chat.sampling_options import SamplingOptions
from reader_edge.terminal.console import print_table
from reader_edge.terminal.formatting import visible
from reader_edge.terminal.model_text import ModelText
from reader_edge_runtime import Engine, GenerationConfig, GenerationStats, Message, ReaderEdgeError
from reader_edge_runtime.text.conversation import Prompt

Load = Callable[[str], Engine]  # the engine of a model by its name

_MARK, _FURTHER = "> ", ". "
_QUOTES = '"""'  # around a text of several lines


class Chat:
    """One conversation. Without a chat template each line is a text of its own, to be continued.

    engine: of the model that answers, which `/model` changes where there is a `load`. config: of each answer, but for
    its sampling. messages: those so far. template_args: what the chat template is given besides. last: the statistics
    of the last answer, and how it was sampled.
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
        sampling: SamplingOptions | None = None,
        load: Load | None = None,
    ) -> None:
        check_messages_options(engine, system, is_raw)
        self.engine = engine
        self.config = config
        self.sampling = sampling or SamplingOptions()
        self.shows_stats = shows_stats
        self.load = load
        self.is_raw = is_raw
        self.template_args = template_args
        self.messages = list(messages) or system_messages(system)
        self.last: tuple[GenerationStats, GenerationConfig] | None = None
        self._commands = ChatCommands(self)

    @property
    def is_conversation(self) -> bool:
        return self.engine.tokenizer.has_chat_template and not self.is_raw

    @property
    def sees_images(self) -> bool:
        return self.is_conversation and self.engine.package.manifest.images is not None

    @property
    def system(self) -> str | None:
        """The system message that the conversation begins with."""
        first = self.messages[:1]
        return str(first[0]["content"]) if first and first[0]["role"] == "system" else None

    def begin(self, system: str | None) -> None:
        """Begin again, with nothing but a system message."""
        self.messages = system_messages(system)
        self.engine.forget()

    def run(self) -> None:
        """Read lines and answer them until the user leaves."""
        with suppress(ImportError):  # on Windows, whose console edits lines itself
            import readline  # noqa: F401  (importing it gives input() editing and a history)
        kind = "Type a message" if self.is_conversation else "Type a text to continue (this is not a chat model)"
        images = " It sees images whose paths are in it." if self.sees_images else ""
        click.echo(f"{kind}.{images} {HELP}", err=True)
        while True:
            try:
                line = _read_line(_MARK).rstrip()
                text = _whole_text(line) if line.startswith(_QUOTES) else None
            except KeyboardInterrupt:
                click.echo("\n/bye or Ctrl-D leaves.", err=True)
                continue
            except EOFError:
                click.echo(err=True)
                return
            if line.removeprefix("/") in LEAVING and is_command(line):
                return
            if text is None and is_command(line):
                self._reporting(lambda line=line: self._commands.obey(line))  # type: ignore[misc]
            elif question := (line if text is None else text).strip():
                self._answer(question)

    def _reporting(self, action: Callable[[], None]) -> None:
        """Do it; what keeps it from that is shown, and the chat goes on."""
        try:
            action()
        except KeyboardInterrupt:
            click.echo("Stopped.", err=True)
        except click.ClickException as error:
            click.echo(f"Error: {visible(error.message)}", err=True)
        except (ReaderEdgeError, OSError) as error:
            click.echo(f"Error: {visible(str(error))}", err=True)

    def _answer(self, text: str) -> None:
        """Answer one text; after an error the conversation goes on without it."""
        content = with_dropped_images(text)
        if not isinstance(content, str):
            names = ", ".join(visible(str(part["image"])) for part in content[:-1])
            blind = f"This model reads texts alone: it gets {names} as text."
            click.echo(f"With {names}." if self.sees_images else blind, err=True)
            content = content if self.sees_images else text
        if self.sees_images and (missing := missing_images(content)):
            click.echo(f"No image file is at {visible(', '.join(missing))}: the model gets this as text.", err=True)
        question: dict[str, Any] = {"role": "user"}
        answer = ModelText(ends_line=True)

        def write() -> None:
            question["content"] = with_read_images(content)
            self._write_answer([*self.messages, question] if self.is_conversation else text, answer)

        self._reporting(write)
        if answer.pieces:
            self.messages += [question, {"role": "assistant", "content": "".join(answer.pieces)}]

    def _write_answer(self, prompt: Prompt, answer: ModelText) -> None:
        whole = with_template_args(prompt, self.template_args)
        sampling = self.sampling.chosen(self.engine.sampling)
        config = replace(self.config, sampling=sampling, is_scored=self.shows_stats)
        stats = answer.print_answer(chunks_of(self.engine, whole, config), self.engine.context_length)
        self.last = stats, config
        if self.shows_stats:
            print_table(stats_table(self.engine, stats, sampling))
        elif self.sampling.note(sampling):
            click.echo(f"Sampled with {sampling}.", err=True)


def _whole_text(line: str) -> str:
    """A text of several lines, from the line on that begins it to the one that ends in quotes too."""
    lines = [line.removeprefix(_QUOTES)]
    while not lines[-1].rstrip().endswith(_QUOTES):
        lines.append(_read_line(_FURTHER))
    return "\n".join([*lines[:-1], lines[-1].rstrip().removesuffix(_QUOTES)])


def _read_line(mark: str) -> str:
    if sys.stdout.isatty():
        return input(mark)
    click.echo(mark, nl=False, err=True)  # standard output is for the answers
    return input()

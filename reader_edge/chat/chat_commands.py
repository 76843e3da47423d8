"""The commands of a chat: lines that begin with a slash."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reader_edge.chat.answer import check_session_place, system_messages
from reader_edge.chat.answer_report import stats_table
from reader_edge.chat.sampling_options import SamplingOptions
from reader_edge.commands.options import MAX_TOKENS
from reader_edge.terminal.console import pairs_table, print_table
from reader_edge.terminal.export_report import sampling_pairs
from reader_edge.terminal.formatting import readable_size, visible
from reader_edge_runtime import GenerationConfig

if TYPE_CHECKING:
    from reader_edge.chat.chat import Chat

HELP = "/help shows the commands, /bye, /exit, /quit or Ctrl-D leaves, Ctrl-C stops an answer."
_SETTING = re.compile(r"\s*=\s*|\s+")  # between a name and its value
_COMMAND = re.compile(r"/([A-Za-z]+|\?)(?= |$)")  # no path, and no comment of a program
LEAVING = ("bye", "exit", "quit")
_LINES = (
    ('"""', 'begins a text of several lines, which ends with """'),
    ("/system [TEXT]", 'says what the model is to be; alone, shows it; `/system ""` removes it'),
    (
        "/set [NAME [VALUE]]",
        "sets temperature, top-k, top-p, min-p, seed, a penalty or max-tokens; without a value, as",
    ),
    ("", "the model recommends, or the default; `/set greedy` draws nothing; alone, shows what holds"),
    ("/stats", "shows the last answer's statistics, and each further one's; again, no longer"),
    ("/save FILE", "keeps the conversation, as `run --session FILE` goes on with it"),
    ("/load FILE", "goes on with a conversation that was kept"),
    ("/model [MODEL]", "goes on with another model; alone, shows what answers here"),
    ("/adapter [NAME]", "goes on with another of the adapters; `/adapter -` with none; alone, shows which answers"),
    ("/reset, /clear", "forgets the conversation, but for the system message"),
    ("/bye, /exit, /quit", "leaves, as Ctrl-D does; Ctrl-C stops an answer"),
    ("/help, /?", "shows this. A line that begins with a space always goes to the model"),
)


def is_command(line: str) -> bool:
    """Whether a line is meant for the chat. One that begins with a space never is."""
    return _COMMAND.match(line) is not None


class ChatCommands:
    """The commands of one chat."""

    def __init__(self, chat: "Chat") -> None:
        self._chat = chat
        self._actions: Mapping[str, Callable[[str], None]] = {
            **dict.fromkeys(("help", "?"), self._help),
            **dict.fromkeys(("reset", "clear"), self._reset),
            **{"system": self._system, "set": self._set, "stats": self._stats},
            **{"save": self._save, "load": self._load, "model": self._model, "adapter": self._adapter},
        }

    def obey(self, line: str) -> None:
        """Do what a line asks for. Raises ReaderEdgeError, ClickException or OSError where that cannot be."""
        name, _, argument = line[1:].partition(" ")
        action, argument = self._actions.get(name), argument.strip()
        is_known = action is not None or name in LEAVING
        if action is None or (argument and action in (self._help, self._reset, self._stats)):
            words = "Nothing goes behind" if is_known else "There is no command"
            raise click.ClickException(f"{words} /{name}. To say this to the model, begin with a space. {HELP}")
        action(argument)

    def _help(self, argument: str) -> None:
        width = max(len(name) for name, _ in _LINES)
        for name, meaning in _LINES:
            click.echo(f"{name:<{width}}  {meaning}", err=True)

    def _reset(self, argument: str) -> None:
        self._chat.begin(self._chat.system)

    def _system(self, text: str) -> None:
        chat = self._chat
        if not chat.is_conversation:
            raise click.ClickException("No chat template is used here, so a system message has no place.")
        if not text:
            shown = "There is no system message." if chat.system is None else visible(chat.system)
            click.echo(shown, err=True)
            return
        rest = chat.messages if chat.system is None else chat.messages[1:]
        chat.messages = [*system_messages(None if text in ('""', "''") else text), *rest]

    def _set(self, argument: str) -> None:
        chat = self._chat
        name, value = [*_SETTING.split(argument, maxsplit=1), ""][:2]
        name = name.replace("_", "-")
        if not name:
            given = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in chat.sampling.values.items())
            pairs = [
                ("max-tokens", str(chat.config.max_tokens)),
                ("given here", "greedy" if chat.sampling.is_greedy else given or "nothing"),
                *self._sampling_pairs(),
            ]
            print_table(pairs_table("Settings", pairs))
        elif name == "max-tokens":
            max_tokens = MAX_TOKENS.convert(value, None, None) if value else GenerationConfig().max_tokens
            chat.config = replace(chat.config, max_tokens=max_tokens)
        elif name == "greedy":
            if value:
                raise click.ClickException(f"Nothing goes behind /set greedy: leave {value} out.")
            chat.sampling = SamplingOptions(is_greedy=True)
        else:
            chat.sampling = chat.sampling.changed(name, value)

    def _sampling_pairs(self) -> list[tuple[str, str]]:
        """How tokens are chosen here, and how they would be where nothing is given."""
        chat = self._chat
        ((_, default), *_) = sampling_pairs(chat.engine.sampling)
        return [("sampling", chat.sampling.in_force(chat.engine.sampling)), ("by default", default)]

    def _stats(self, argument: str) -> None:
        chat = self._chat
        chat.shows_stats = not chat.shows_stats
        if chat.shows_stats and chat.last is not None:
            stats, config = chat.last
            print_table(stats_table(chat.engine, stats, config.sampling))
        click.echo(f"Statistics {'follow' if chat.shows_stats else 'no longer follow'} each answer.", err=True)

    def _save(self, name: str) -> None:
        path = _path(name, "save")
        check_session_place(path)
        self._chat.engine.save_session(path, self._chat.messages if self._chat.is_conversation else ())
        click.echo(visible(f"Kept in '{path}'."), err=True)

    def _load(self, name: str) -> None:
        path, chat = _path(name, "load"), self._chat
        if not path.is_file():
            raise click.ClickException(f"There is no file '{path}': /save writes one.")
        chat.messages = chat.engine.load_session(path)
        click.echo(visible(f"{len(chat.messages)} messages of '{path}'."), err=True)

    def _adapter(self, name: str) -> None:
        chat = self._chat
        if name:
            adapter = None if name == "-" else chat.engine.adapters.get(name).name
            chat.config = replace(chat.config, adapter=adapter)
        names = ", ".join(chat.engine.adapters) or "none"
        click.echo(f"{chat.config.adapter or 'No adapter'} answers; there are {names}.", err=True)

    def _model(self, name: str) -> None:
        chat = self._chat
        if name:
            if chat.load is None:
                raise click.ClickException("The model of a --session stays: leave, and run the other one without it.")
            loaded = chat.load(name)
            if chat.is_conversation and not loaded.tokenizer.has_chat_template:
                raise click.ClickException(f"{name} is no chat model: leave, and run it by itself.")
            chat.engine.close()
            chat.engine, chat.last = loaded, None
            chat.config = replace(chat.config, adapter=None)
        manifest = chat.engine.package.manifest
        pairs = [
            ("source", manifest.source_name),
            ("folder", str(chat.engine.package.folder)),
            ("precision", manifest.precision),
            ("max context", f"{manifest.max_context} tokens"),
            ("size", readable_size(manifest.num_bytes)),
            *self._sampling_pairs(),
        ]
        print_table(pairs_table("Model", pairs))


def _path(name: str, command: str) -> Path:
    if not name:
        raise click.ClickException(f"/{command} needs the name of a file.")
    return Path(name).expanduser()

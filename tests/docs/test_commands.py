"""Command lines in the README and the documentation have options that there are."""

import re
import shlex

import click
import pytest

from docs.reference_pages import commands
from reader_edge.cli import main
from tests.docs.markdown import PAGES, code_blocks, page_name

_START = re.compile(r"(?:^|[|&]|-- )\s*(?:\S*/)?reader-edge\s(.*)")
_END = re.compile(r"\s(?:&&|\||>|2>)")
LINES = [
    pytest.param(command, id=f"{page_name(page)}: {command[:60]}")
    for page in PAGES
    for block in code_blocks(page, "sh")
    for line in block.replace("\\\n", " ").splitlines()
    if (found := _START.search(line)) and (command := _END.split(found[1])[0])
]


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_is_understood(line: str) -> None:
    assert_understood(shlex.split(line, comments=True))


def assert_understood(words: list[str]) -> None:
    """Parse the words as click does, but ask nothing of their values: files need not be there."""
    command: click.Command = main
    while True:
        context = click.Context(command)
        values, rest, _ = command.make_parser(context).parse_args(list(words))
        if not isinstance(command, click.Group) or not rest:
            break
        name, *words = rest
        assert name in command.commands, f"there is no command {name!r}"
        command = command.commands[name]
    assert not rest, f"{rest} are too many arguments of {command.name}"
    is_help = "--help" in words
    for parameter in command.params:
        if parameter.required and not is_help:
            is_missing = parameter.value_is_missing(values.get(parameter.name or ""))
            assert not is_missing, f"{command.name} needs {parameter.human_readable_name}"


HELPS = [
    pytest.param(command, id=" ".join(names))
    for names, command in commands(main, ("reader-edge",))
    if not isinstance(command, click.Group)
]


@pytest.mark.parametrize("command", HELPS)
def test_help_begins_with_a_sentence_and_ends_with_examples(command: click.Command) -> None:
    first, *rest = command.get_help(click.Context(command)).partition("Usage:")[2].splitlines()[2:]
    assert len(first) - len(first.lstrip()) == 2
    assert len((command.help or "").partition("\n\n")[0]) <= 130
    examples = [line.split("reader-edge ", 1)[1] for line in rest[-4:] if line.strip().startswith("reader-edge ")]
    assert rest[-1].strip() == f"reader-edge {examples[-1]}"
    for line in examples:
        assert_understood(shlex.split(line))


@pytest.mark.parametrize("words", [["run", "--nonsense"], ["rn"], ["export", "model"], ["pull", "a", "b"]])
def test_a_wrong_command_line_is_noticed(words: list[str]) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        assert_understood(words)

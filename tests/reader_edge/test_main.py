"""The command's beginning: Ctrl-C works while modules are imported, and what fails is one sentence."""

import errno
import os
import signal
import sys
from collections.abc import Iterator

import click
import pytest

import reader_edge
from reader_edge import __main__ as beginning
from reader_edge import cli
from reader_edge_runtime.errors import ProviderError


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN], ids=["received", "ignored"])
def test_ctrl_c_is_what_it_was_once_all_is_imported(
    before: signal.Handlers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["reader-edge", "--version"])
    signal.signal(signal.SIGINT, before)
    with pytest.raises(SystemExit) as ended:
        beginning.main()
    assert (ended.value.code, signal.getsignal(signal.SIGINT)) == (0, before)
    assert reader_edge.__version__ in capsys.readouterr().out


def test_ctrl_c_ends_an_import_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    beginning._leave(signal.SIGINT, None)
    assert codes == [130]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OSError(errno.ENOSPC, "No space left", "a\x1b[2J"), r"'a.*\[2J' cannot be used: No space left: free some"),
        (OSError(errno.EACCES, "Permission denied", "a"), r"^'a' cannot be used: Permission denied\.$"),
        (ProviderError("It does not run."), r"^It does not run\. `reader-edge doctor MODEL` says more\.$"),
    ],
)
def test_what_fails_is_one_sentence_that_steers_no_terminal(error: Exception, shown: str) -> None:
    with pytest.raises(click.ClickException, match=shown) as refused, cli._errors_reported():
        raise error
    assert refused.value.message.isprintable()


def test_what_others_take_care_of_is_handed_on() -> None:
    for error in (BrokenPipeError(errno.EPIPE, "Broken pipe"), ZeroDivisionError()):
        with pytest.raises(type(error)), cli._errors_reported():
            raise error


def test_an_interrupt_in_disguise_is_shown_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit) as ended, cli._errors_reported():
        raise ImportError("numpy") from KeyboardInterrupt()
    assert (ended.value.exit_code, capsys.readouterr().err) == (130, "Interrupted.\n")

"""Messages while a model writes are shown at once, on lines of their own."""

import io
import sys
import warnings

import pytest

from reader_edge.terminal.model_text import ModelText


def one_place(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> io.StringIO:
    """Where both streams go. Called in the test itself, since pytest replaces the streams after fixtures have run."""
    place = io.StringIO()
    monkeypatch.setattr(place, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", place)
    monkeypatch.setattr(sys, "stderr", place)
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: place.write(f"Warning: {message}\n"))
    return place


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.filterwarnings("always")
def test_what_an_answer_waits_for_is_shown_at_once_and_all_else_behind_it(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = one_place(monkeypatch, is_terminal)
    text = ModelText()
    with text.coming():
        text.write("one ")
        warnings.warn("Stage 1 is gone.", RuntimeWarning, stacklevel=1)
        assert shown.getvalue() == "one \nWarning: Stage 1 is gone.\n"
        warnings.warn("It is gone.", RuntimeWarning, stacklevel=1)
        text.write("")
        warnings.warn("A file is full.", stacklevel=1)
        text.write("two\n")
        warnings.warn("It is back.", RuntimeWarning, stacklevel=1)
    text.start_line()
    assert shown.getvalue().splitlines()[1:] == [
        *("Warning: Stage 1 is gone.", "Warning: It is gone."),
        *("two", "Warning: It is back.", "Warning: A file is full."),
    ]
    assert "".join(text.pieces) == "one two\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_error_is_kept_apart(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = one_place(monkeypatch, is_terminal)

    def interrupted(*pieces: str) -> None:
        text = ModelText()
        with text.coming():
            for piece in pieces:
                text.write(piece)
            raise KeyboardInterrupt

    for pieces in (("It",), ()):  # within a word, and before any
        with pytest.raises(KeyboardInterrupt):
            interrupted(*pieces)
        assert shown.getvalue() == "It\n"


def test_only_a_terminals_line_is_ended_on_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_terminal, ends_line, out, err in (
        *((True, None, "It\n", ""), (False, None, "It", "\n")),
        (False, True, "It\n", ""),  # of a chat, whose answers each end their line
    ):
        monkeypatch.setattr("sys.stdout.isatty", lambda is_terminal=is_terminal: is_terminal)
        text = ModelText(ends_line)
        with text.coming():
            text.write("It")
        text.start_line()
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == (out, err)

"""Text of a model on standard output as it comes, and what is reported meanwhile on lines of its own."""

import io
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from reader_edge.terminal.formatting import visible

if TYPE_CHECKING:
    from reader_edge_runtime import GenerationChunk, GenerationStats


def write(text: str) -> None:
    """Write text from outside to standard output: as it is, but on a terminal without control over it."""
    click.echo(visible(text) if sys.stdout.isatty() else text, nl=False, color=True)  # else click strips colours


def accept_any_text() -> None:
    """Let standard output replace characters that its encoding lacks: models write what they like."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


class ModelText:
    """pieces: of the text so far, which outlive an interruption. ends_line: on standard output too, as it ends.

    On a terminal a line is ended where something is reported within it. Elsewhere standard output has the model's text
    alone, and standard error gets the line end: both may go to one place.
    """

    def __init__(self, ends_line: bool | None = None) -> None:
        """ends_line: None where standard output is a terminal."""
        self.pieces: list[str] = []
        self._ends_line = sys.stdout.isatty() if ends_line is None else ends_line
        self._is_line_open = False  # on standard output
        self._is_line_clear = True  # what standard error gets next

    def write(self, text: str) -> None:
        self.pieces.append(text)
        write(text)
        if text:
            self._is_line_open = not text.endswith("\n")
            self._is_line_clear = not self._is_line_open

    def end_line(self) -> None:
        """End the line on standard output, if one is begun."""
        if self._is_line_open:
            click.echo()
        self._is_line_open, self._is_line_clear = False, True

    def start_line(self) -> None:
        """Start the next report on a line of its own."""
        if sys.stdout.isatty():
            self.end_line()
        elif not self._is_line_clear:
            click.echo(err=True)
            self._is_line_clear = True

    def print_answer(self, chunks: "Iterable[GenerationChunk]", max_context: int) -> "GenerationStats":
        """Write an answer as it comes, then whether the context cut it, and how far it deviates by a rule."""
        from reader_edge_runtime.stats import GenerationStats

        stats, last = GenerationStats(), None
        with self.coming():
            for last in chunks:
                self.write(last.text)
                stats = last.stats or stats
        is_cut = last is not None and last.finish_reason == "context"
        if is_cut or (last is not None and last.deviation):
            self.start_line()
        if is_cut:
            report_context_end(max_context)
        if last is not None and last.deviation:
            click.echo(deviation_sentence(last.deviation), err=True)
        return stats

    @contextmanager
    def coming(self) -> Iterator[None]:
        """While it comes, a RuntimeWarning, of what the answer waits for, is reported at once; others are at its end.

        An error that ends it is kept apart.
        """
        show, postponed = warnings.showwarning, list[tuple[Any, ...]]()

        def show_apart(message: Any, category: type[Warning], *where: Any, **_how: Any) -> None:
            if not issubclass(category, RuntimeWarning):
                postponed.append((message, category, *where))
                return
            self.start_line()
            show(message, category, *where)

        try:
            with warnings.catch_warnings():
                warnings.showwarning = show_apart
                yield
        except BaseException:
            self.start_line()
            raise
        finally:
            if self._ends_line:
                self.end_line()
            for each in postponed:
                self.start_line()
                show(*each)


def report_context_end(max_context: int) -> None:
    """Say why an answer ended before its time."""
    click.echo(f"The answer ended at the model's context of {max_context} tokens.", err=True)


def deviation_sentence(deviation: Mapping[str, Any]) -> str:
    """In a line. deviation: as the answer has it."""
    figures = ", ".join(f"{name} {value}" for name, value in deviation["figures"].items())
    usual = deviation["usual_repeated_4grams"]
    usually = "not known: `reader-edge warm` finds out" if usual is None else f"{usual:.1%}"
    return visible(
        f"Lossy ({deviation['rule']}: {figures}): {deviation['num_changed']} of {deviation['num_tokens']} tokens are "
        f"not the model's choice, {deviation['nats_per_token']:.4f} nats a token given up; "
        f"{deviation['repeated_4grams']:.1%} of 4-grams repeated (usually {usually})."
    )

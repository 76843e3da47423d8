"""Tables and lines for a terminal, and progress on standard error."""

import os
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import zip_longest
from typing import Any, TextIO

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
)
from rich.progress import TimeRemainingColumn as RemainingColumn
from rich.table import Table
from rich.text import Text

from reader_edge.terminal.formatting import readable_time, visible

_LEAST_WIDTH = 20  # that a table is squeezed to
_LATE_S = 1.0
_BETWEEN_LINES_S = 60.0

OnProgress = Callable[[float, float], None]
OnPhase = Callable[[str], None]

_caller: ContextVar[OnProgress | None] = ContextVar("caller", default=None)


class _Console(Console):
    """Shows texts as they are: what a package, a file or a source is called is neither markup nor control."""

    def __init__(self, file: TextIO) -> None:
        super().__init__(file=file, highlight=False, markup=False, emoji=False)
        if not self.is_terminal and not self.is_jupyter:
            self.width = wanted_width() or 200  # as wide as tables need

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def wanted_width() -> int | None:
    """Columns that $COLUMNS asks for; None where it says nothing of use."""
    columns = os.environ.get("COLUMNS", "")
    return max(_LEAST_WIDTH, int(columns)) if columns.isascii() and columns.isdigit() and len(columns) < 6 else None


def stderr_console() -> Console:
    """A console on the standard error of this moment."""
    return _Console(sys.stderr)


def figures_table(title: str, name: str, *figures: str) -> Table:
    """An empty table: a column of names, then columns of figures."""
    table = Table(title=title, title_justify="left")
    table.add_column(name, overflow="fold")
    for figure in figures:
        table.add_column(figure, justify="right")
    return table


def pairs_table(title: str, pairs: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    return table


def phase_pairs(phase_seconds: Mapping[str, float]) -> list[tuple[str, str]]:
    """The time that a task took, and each of its phases."""
    phases = [(f"  {name}", f"{seconds:.1f} s") for name, seconds in phase_seconds.items()]
    return [("time", f"{sum(phase_seconds.values()):.1f} s"), *phases]


def print_table(table: Table) -> None:
    """Show a table on standard error."""
    stderr_console().print(table)


def print_report(*parts: Table | str) -> None:
    """Show tables and sentences on standard output."""
    for part in parts:
        _Console(sys.stdout).print(part)


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and values on standard output, values below each other."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        for line in folded(visible(f"{name:<{width}}  {value}"), width + 2):
            click.echo(line)


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Rows on standard output, each column as wide as its widest cell; the first two give way to a wanted width."""
    shown = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    if (wanted := wanted_width()) is not None:  # the first column is that of names, which may be long
        for column, least in enumerate((_LEAST_WIDTH, _LEAST_WIDTH // 2)):
            others = sum(widths) - widths[column] + 2 * len(widths[1:])
            widths[column] = min(widths[column], max(least, wanted - others))
    for row in shown:
        cells = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            click.echo("  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip())


def folded(line: str, indent: int) -> list[str]:
    """A line, or several no longer than is wanted, those behind the first indented."""
    wanted = wanted_width()
    if wanted is None or len(line) <= wanted:
        return [line.rstrip()]
    indent = min(indent, wanted // 2)
    return textwrap.wrap(line, wanted, subsequent_indent=" " * indent, drop_whitespace=True)


@contextmanager
def progress_for(caller: Callable[[int, int], None] | None) -> Iterator[None]:
    """Have the bars of tasks within call a function in place of being drawn; None draws them."""
    before = _caller.set(None if caller is None else lambda done, total: caller(round(done), round(total)))
    try:
        with warnings.catch_warnings():  # tqdm's, which no bar is drawn by here
            warnings.filterwarnings("ignore", message="IProgress not found")
            yield
    finally:
        _caller.reset(before)


def draws_bars(console: Console) -> bool:
    """Whether bars can be drawn: on a terminal, or in a notebook that has what rich draws them with."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


@contextmanager
def byte_progress(label: str) -> Iterator[OnProgress]:
    """A bar for bytes done and bytes in all; gone when it is full, and never there in a pipe."""
    with _bars([label], DownloadColumn(binary_units=True)) as (on_progress,):
        yield on_progress


@contextmanager
def count_progress(label: str) -> Iterator[OnProgress]:
    """A bar for things done and things in all."""
    with _bars([label], MofNCompleteColumn(), RemainingColumn()) as (on_progress,):
        yield on_progress


@contextmanager
def share_progress(label: str) -> Iterator[OnProgress]:
    """A bar for a share of the whole, with the time that is left; never there in a pipe."""
    with _bars([label], TaskProgressColumn(), RemainingColumn()) as (on_progress,):
        yield on_progress


@contextmanager
def late_progress(label: str) -> Iterator[OnProgress]:
    """The same for what is mostly done at once: it is drawn when the work goes on beyond `_LATE_S`."""
    begin, drawn = time.monotonic(), list[OnProgress]()
    with ExitStack() as stack:

        def on_progress(done: float, total: float) -> None:
            if not drawn and done < total and time.monotonic() - begin > _LATE_S:
                drawn.append(stack.enter_context(share_progress(label)))
            for draw in drawn:
                draw(done, total)

        yield on_progress


def load_progress(*labels: str) -> AbstractContextManager[tuple[OnProgress, ...]]:
    """A bar for each of several phases, each shown when it begins."""
    return _bars(labels, TaskProgressColumn())


@contextmanager
def _bars(labels: Sequence[str], *amount: ProgressColumn) -> Iterator[tuple[OnProgress, ...]]:
    if (caller := _caller.get()) is not None:
        yield tuple(caller for _ in labels)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), *amount)
    progress = Progress(*columns, console=stderr_console(), transient=True)
    progress.disable = not draws_bars(progress.console)

    def bar(label: str) -> OnProgress:
        task = progress.add_task(visible(label), total=None, visible=len(labels) == 1)
        return lambda done, total: progress.update(task, completed=done, total=total, visible=True)

    with progress:
        yield tuple(map(bar, labels))


@contextmanager
def phase_progress(label: str) -> Iterator[OnPhase]:
    """A spinner that names the phase of a long task; in a pipe, one line a phase."""
    console = stderr_console()
    if not draws_bars(console):
        yield lambda phase: console.print(f"{label}: {phase}", soft_wrap=True)
        return
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), console=console, transient=True
    ) as progress:
        task = progress.add_task(visible(label))
        yield lambda phase: progress.update(task, description=visible(f"{label}: {phase}"))


@dataclass(frozen=True, slots=True)
class WorkProgress:
    """Callbacks of a long task: phases as they begin, what is done of each, and lines that stay."""

    on_phase: OnPhase
    on_progress: OnProgress
    on_message: Callable[[str], None]


class _PhaseLines:
    """A long task in a pipe."""

    def __init__(self, label: str, on_message: Callable[[str], None]) -> None:
        self._label, self._on_message = label, on_message
        self._phase, self._shown_at = "", time.monotonic()

    def on_phase(self, phase: str) -> None:
        self._phase, self._shown_at = phase, time.monotonic()
        self._on_message(f"{self._label}: {phase}")

    def on_progress(self, done: float, total: float) -> None:
        if time.monotonic() - self._shown_at > _BETWEEN_LINES_S:
            self._shown_at = time.monotonic()
            self._on_message(f"{self._label}: {self._phase}, {done / total:.0%}")


class _TimeLeft(ProgressColumn):
    """Of a phase that goes on as it went so far. Parts of it may take long: between them, time runs down."""

    def render(self, task: Task) -> Text:
        ends_at: float | None = task.fields["ends_at"]
        return Text("" if ends_at is None else f"{readable_time(max(0.0, ends_at - time.monotonic()))} left")


@contextmanager
def work_progress(label: str) -> Iterator[WorkProgress]:
    """A spinner that names the phase of a long task, with a bar and the time left where a phase tells what is done; in
    a pipe, a line for each phase, and for each minute of one."""
    console = stderr_console()

    def on_message(line: str) -> None:
        console.print(line, soft_wrap=True)  # above the spinner, which is drawn again

    caller = _caller.get()
    if caller is not None or not draws_bars(console):
        lines = _PhaseLines(label, on_message)
        yield WorkProgress(lines.on_phase, caller or lines.on_progress, on_message)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    with Progress(*columns, _TimeLeft(), console=console, transient=True) as progress:
        tasks = [progress.add_task(visible(label), total=None, ends_at=None)]
        begin = time.monotonic()

        def on_phase(phase: str) -> None:
            nonlocal begin
            begin = time.monotonic()
            progress.remove_task(tasks.pop())  # with its total, which cannot be taken back
            tasks.append(progress.add_task(visible(f"{label}: {phase}"), total=None, ends_at=None))
            progress.refresh()

        def on_progress(done: float, total: float) -> None:
            ends_at = begin + (time.monotonic() - begin) * total / done if done else None
            progress.update(tasks[0], completed=done, total=total, ends_at=ends_at)

        yield WorkProgress(on_phase, on_progress, on_message)

"""What `doctor` prints: a table on a terminal, lines in a pipe, JSON without anybody's folders."""

import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from reader_edge.terminal.console import folded, print_report
from reader_edge.terminal.formatting import visible
from reader_edge_runtime.doctor.check_result import CheckResult, Severity, verdict

_STYLES = {Severity.WELL: "green", Severity.NOTE: "cyan", Severity.SLOWER: "yellow", Severity.BROKEN: "bold red"}
_VERDICTS = {
    Severity.WELL: "All is well.",
    Severity.SLOWER: "It works, but slower than it could.",
    Severity.BROKEN: "It does not work as it is.",
}
# Quoted paths, which may hold spaces, and others; those of the system itself are nobody's.
_FOLDERS = re.compile(
    r"(?<=')(?:[A-Za-z]:[\\/]|/)[^']*[\\/](?=[^'\\/]+')|(?<![\w'./-])/(?!sys/|proc/|dev/)(?:[^/\s']+/)+"
)


def print_results(results: Sequence[CheckResult]) -> None:
    """Show results on standard output, each with its remedy, and the verdict at the end."""
    if sys.stdout.isatty():
        print_report(_table(results))
    else:
        for result in results:
            line = f"{result.severity:<7} {result.check}: {result.sentence}"
            for part in folded(visible(f"{line} {result.remedy}".rstrip()), 8):
                click.echo(part)
    print_report(_VERDICTS[verdict(results)])


def results_as_json(results: Sequence[CheckResult], folder: str = "") -> str:
    """One object: the verdict, and every result, paths cut down to their last part.

    folder: one that results may name, whose path may be relative, or hold what ends a path elsewhere.
    """
    shown = [
        {
            "check": result.check,
            "severity": result.severity,
            "finding": without_folders(result.sentence, folder),
            "remedy": without_folders(result.remedy, folder),
        }
        for result in results
    ]
    return json.dumps({"verdict": verdict(results), "findings": shown})


def without_folders(text: str, folder: str = "") -> str:
    """A text whose paths have lost all but their last part: reports are shown to others."""
    for known in (os.path.realpath(folder), os.path.abspath(folder), str(Path(folder))) if folder else ():
        if Path(known).parent.name:
            text = text.replace(f"{known}{os.sep}", "").replace(known, Path(known).name)
    with suppress(RuntimeError):  # a user without a home
        home = Path.home()
        text = text.replace(str(home), "") if home.name else text  # it may have spaces, or be the root
    return _FOLDERS.sub("", text)


def _table(results: Sequence[CheckResult]) -> Table:
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(style="bold")
    table.add_column()
    for result in results:
        cell = Text(result.sentence)
        if result.remedy:
            cell.append(f"\n-> {result.remedy}", style=_STYLES[result.severity])
        table.add_row(Text(result.severity, style=_STYLES[result.severity]), result.check, cell)
    return table

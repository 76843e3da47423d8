"""What an examination found: a table on a terminal, lines in a pipe, JSON without anybody's folders."""

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


def print_findings(findings: Sequence[CheckResult]) -> None:
    """Show findings on standard output, each with its remedy, and the verdict at the end."""
    if sys.stdout.isatty():
        print_report(_table(findings))
    else:
        for finding in findings:
            line = f"{finding.severity:<7} {finding.check}: {finding.sentence}"
            for part in folded(visible(f"{line} {finding.remedy}".rstrip()), 8):
                click.echo(part)
    print_report(_VERDICTS[verdict(findings)])


def findings_as_json(findings: Sequence[CheckResult], folder: str = "") -> str:
    """One object: the verdict, and every finding, paths cut down to their last part.

    folder: one that findings may name, whose path may be relative, or hold what ends a path elsewhere.
    """
    shown = [
        {
            "check": finding.check,
            "severity": finding.severity,
            "finding": without_folders(finding.sentence, folder),
            "remedy": without_folders(finding.remedy, folder),
        }
        for finding in findings
    ]
    return json.dumps({"verdict": verdict(findings), "findings": shown})


def without_folders(text: str, folder: str = "") -> str:
    """A text whose paths have lost all but their last part: reports are shown to others."""
    for known in (os.path.realpath(folder), os.path.abspath(folder), str(Path(folder))) if folder else ():
        if Path(known).parent.name:
            text = text.replace(f"{known}{os.sep}", "").replace(known, Path(known).name)
    with suppress(RuntimeError):  # a user without a home
        home = Path.home()
        text = text.replace(str(home), "") if home.name else text  # it may have spaces, or be the root
    return _FOLDERS.sub("", text)


def _table(findings: Sequence[CheckResult]) -> Table:
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(style="bold")
    table.add_column()
    for finding in findings:
        cell = Text(finding.sentence)
        if finding.remedy:
            cell.append(f"\n-> {finding.remedy}", style=_STYLES[finding.severity])
        table.add_row(Text(finding.severity, style=_STYLES[finding.severity]), finding.check, cell)
    return table

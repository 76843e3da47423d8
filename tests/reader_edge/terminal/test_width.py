"""What is piped is no wider than $COLUMNS asks, and nothing of it is lost."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from reader_edge.cli import main
from reader_edge.models.store import StoredModel
from reader_edge.terminal.console import figures_table, pairs_table, print_columns, print_pairs, print_report

LONG = "a name of many words that no narrow terminal has room for, and " + "x" * 90


def _letters(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", "", text)


@pytest.mark.parametrize("columns", [40, 100])
@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "-p", "# tar", "-n", "8", "--compare", "--stats"],
        ["info"],
        ["bench", "decode", "-n", "4", "--rounds", "1"],
        ["doctor"],
    ],
    ids=lambda each: "-".join(word for word in each if word.isalpha()),
)
def test_reports_keep_to_the_width(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: int, arguments: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("# tar\n# git\n")
    given = [*arguments, "--prompts", str(prompts)] if arguments[0] == "bench" else arguments
    result = runner.invoke(main, given)
    assert result.exit_code in (0, 1), result.output
    shown = result.stderr if arguments[0] == "run" else result.output
    assert shown.count("\n") > 5
    assert [line for line in shown.splitlines() if cell_len(line) > columns] == []


def test_nothing_is_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    table = figures_table("Title", "name", "figure")
    table.add_row(LONG, "1.5")
    print_report(table, pairs_table("Pairs", [("name", LONG), (LONG, "value")]))
    print_pairs([("name", LONG)])
    print_columns([("NAME", "SIZE"), (LONG, "5 MB")])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 50
    assert shown.count("x") == 5 * 90
    assert "…" not in shown


@pytest.mark.parametrize("columns", ["", "0x10", "-5", "999999999"])
def test_a_width_that_says_nothing_of_use_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_pairs([("name", LONG)])
    assert capsys.readouterr().out == f"name  {LONG}\n"


def test_a_list_of_models_keeps_to_it_too(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stored = StoredModel("owner/" + "a-model-of-a-long-name-" * 4)
    with stored.locked():
        (stored.folder / "source").mkdir()
        shown = runner.invoke(main, ["list"]).stdout
        (stored.folder / "source").rmdir()
    assert max(map(len, shown.splitlines())) <= 60
    assert "source" in shown


def test_columns_give_way_and_lose_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_columns([("a" * 50, "package, gguf, not tuned", "8.5 MB", "2026-11-28 21:46")])
    assert capsys.readouterr().out.splitlines() == [
        "aaaaaaaaaaaaaaaaaaaa  package,      8.5 MB  2026-11-28 21:46",
        "aaaaaaaaaaaaaaaaaaaa  gguf, not",
        "aaaaaaaaaa            tuned",
    ]

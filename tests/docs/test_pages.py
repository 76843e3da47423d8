"""Pages stay short, figures stand once and with their machine, date and command, and elsewhere are none."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.markdown import DOCS, PAGES, page_name, sections

MEASURED = DOCS / "explanation" / "measured"
_FIGURE = re.compile(r"\b20\d\d-\d\d-\d\d\b|\d tokens/s|\d [mµu]s\b")
_TOOL = re.compile(r"(?<![\w:/])scripts/\w+|(?<=python -m )[\w.]*\w|\bbenchmarks\.[\w.]*\w")
_LINK = re.compile(r"\]\((?!\w+:)([^)\s]+)\)")
_COMMIT = re.compile(r"as of commit [0-9a-f]{7}|git worktree add \S+ [0-9a-f]{7}")
PROSE = sorted([*DOCS.glob("how-to/*.md"), *DOCS.glob("explanation/*.md")])
HOUSE_PAGES = [ROOT / "CONTRIBUTING.md"]
HOUSE_PAGES += sorted(page for folder in ("benchmarks", "models", "native") for page in (ROOT / folder).rglob("*.md"))


def test_the_readme_has_less_than_a_hundred_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 100


def test_figures_in_the_readme_stand_on_a_measured_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = [*MEASURED.rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
    measured = " ".join(page.read_text(encoding="utf-8") for page in pages)
    text = re.sub(r"`[^`]*`|```.*?```|127\.0\.0\.1|<[^>]*>", "", readme, flags=re.DOTALL)
    figures = re.findall(r"\b\d+\.\d+\b", text.replace("Apache-2.0", ""))
    assert len(figures) > 8
    assert not [figure for figure in figures if figure not in measured]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_page_but_the_reference_is_long(page: Path) -> None:
    is_long = len(page.read_text(encoding="utf-8").splitlines()) > 150
    assert not is_long or page.parent.name in ("reference", "decisions")


@pytest.mark.parametrize("page", [*PAGES, *HOUSE_PAGES], ids=page_name)
def test_every_link_leads_somewhere_in_a_checkout(page: Path) -> None:
    links = [link.partition("#")[0] for link in _LINK.findall(page.read_text(encoding="utf-8"))]
    assert not [link for link in links if link and not (page.parent / link).exists()]


@pytest.mark.parametrize("page", sorted(MEASURED.rglob("[!i]*.md")), ids=page_name)
def test_every_measured_table_has_its_machine_date_and_command(page: Path) -> None:
    for title, text in sections(page):
        facts = re.findall(r"^- \*\*(\w+)\*\*: \S", text, re.MULTILINE)
        assert "\n|" not in text or facts[:3] == ["Machine", "Date", "Command"], title


@pytest.mark.parametrize(
    "page", sorted(DOCS.glob("how-to/*.md")) + sorted(DOCS.glob("explanation/*.md")), ids=page_name
)
def test_how_tos_and_explanations_have_no_figures(page: Path) -> None:
    assert not _FIGURE.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [*PAGES, *HOUSE_PAGES], ids=page_name)
def test_scripts_and_modules_that_pages_name_are_there_or_of_a_commit(page: Path) -> None:
    parts = page.read_text(encoding="utf-8").split("\n## ")
    names = [name for part in parts if not _COMMIT.search(part) for name in _TOOL.findall(part)]
    for path in (ROOT / name.replace(".", "/") for name in names):
        is_ours = (ROOT / path.relative_to(ROOT).parts[0]).is_dir()
        assert not is_ours or path.exists() or path.with_suffix(".py").exists(), path

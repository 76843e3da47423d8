"""The pages that a user reads, and what stands in them."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def code_blocks(path: Path, language: str) -> list[str]:
    """Fenced blocks of a language, in the page's order."""
    found = _BLOCK.findall(path.read_text(encoding="utf-8"))
    return [text for kind, text in found if kind == language]


def sections(path: Path) -> Iterator[tuple[str, str]]:
    """Titles and texts of a page's parts of the second level."""
    for part in path.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        yield title, text

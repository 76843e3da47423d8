"""Pages of the documentation: their sizes, links, terms and generated parts, and the formats of GGUF files."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from msgspec import inspect

import reader_edge
from docs.reference_pages import command_line_page, docstrings_page, http_page, manifest_page
from reader_edge.cli import COMMANDS
from reader_edge.server.endpoints import OPENAI_ENDPOINTS
from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.sources.generation import _ENDS, _ENDS_BESIDE
from reader_edge_export.sources.gguf.tokenizer_kind import PRE_TOKENIZERS
from reader_edge_runtime.call_options import GenerationOptions
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import Manifest
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


_PAGES = Path(__file__).parents[2] / "docs" / "reference"
PAGE = (_PAGES / "gguf.md").read_text("utf-8")


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_names_of_tokenizers_are_listed(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", [*_ENDS, "</s>", *_ENDS_BESIDE, *_ENDS_BESIDE.values()])
def test_names_of_tokens_that_end_an_answer_are_listed(name: str) -> None:
    assert f"`{name}`" in (_PAGES / "models.md").read_text("utf-8")


def test_the_types_that_stay_in_their_blocks_are_listed() -> None:
    assert f"| {', '.join(BLOCK_TYPES)} | they stay as they are" in PAGE


def test_every_command_has_its_help() -> None:
    page = command_line_page()
    assert all(f"## {command.name}\n" in page for command in COMMANDS)
    assert "## bench decode\n" in page
    assert "  -p, --prompt TEXT" in page


def test_every_field_of_the_contract_is_listed() -> None:
    page = http_page()
    for endpoint in OPENAI_ENDPOINTS.values():
        kind = inspect.type_info(endpoint.body_type)
        assert isinstance(kind, inspect.StructType)
        assert all(f"`{field.encode_name}`" in page for field in kind.fields)


def test_every_field_of_the_manifest_is_listed() -> None:
    page = manifest_page()
    for kind in (Manifest, Layer):
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.DataclassType | inspect.StructType)
        assert all(f"| `{field.encode_name}` |" in page for field in info.fields)


def test_the_page_of_python_names_all_that_is_public() -> None:
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", page))))
    configs = (reader_edge.EngineConfig, reader_edge.DraftConfig, reader_edge.DraftSources, reader_edge.ServingConfig)
    kinds = (*configs, reader_edge.GenerationResult, reader_edge.GenerationChunk, reader_edge.Conversation)
    wanted = {*reader_edge.__all__, *GenerationOptions.__annotations__, "place"} - {"__version__"}
    wanted |= {each.name for kind in kinds for each in fields(kind)}
    wanted |= {name for name, each in vars(reader_edge.GenerationResult).items() if isinstance(each, property)}
    assert not {name for name in wanted - named if not name.startswith("_")}
    assert all(f"::: reader_edge.{name}\n" in docstrings_page() for name in ("Engine", "AsyncEngine", "ToolCall"))


def test_fields_of_docstrings_become_lists() -> None:
    text = "What it is.\n\nfirst: one thing,\n    in two lines.\nsecond, third: others.\nRaises Error."
    expected = (
        "What it is.\n\n- **first**: one thing,\n    in two lines.\n- **second, third**: others.\n\nRaises Error."
    )
    pytest.importorskip("griffe")  # extra "docs"
    from docs.docstring_fields import listed

    assert listed(text) == expected
    assert listed(expected) == expected

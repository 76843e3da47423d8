"""Pages that are generated when the site is built hold all that there is."""

import re
from dataclasses import fields

import pytest
from msgspec import inspect

import reader_edge
from docs.reference_pages import command_line_page, docstrings_page, http_page, manifest_page
from reader_edge.cli import COMMANDS
from reader_edge.server.endpoints import ENDPOINTS
from reader_edge_runtime.given_arguments import GenerationOptions
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import Manifest
from tests.docs.markdown import DOCS


def test_every_command_has_its_help() -> None:
    page = command_line_page()
    assert all(f"## {command.name}\n" in page for command in COMMANDS)
    assert "## bench decode\n" in page
    assert "  -p, --prompt TEXT" in page


def test_every_field_of_the_contract_is_listed() -> None:
    page = http_page()
    for endpoint in ENDPOINTS.values():
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

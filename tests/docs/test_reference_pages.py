"""Pages that are generated when the site is built hold all that there is."""

from dataclasses import fields

import pytest
from msgspec import inspect

from docs.reference_pages import command_line_page, http_page, manifest_page
from reader_edge.cli import COMMANDS
from reader_edge.server.endpoints import ENDPOINTS
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import Manifest


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
    assert all(f"| `{field.name}` |" in page for kind in (Manifest, Layer) for field in fields(kind))


def test_fields_of_docstrings_become_lists() -> None:
    text = "What it is.\n\nfirst: one thing,\n    in two lines.\nsecond, third: others.\nRaises Error."
    expected = (
        "What it is.\n\n- **first**: one thing,\n    in two lines.\n- **second, third**: others.\n\nRaises Error."
    )
    pytest.importorskip("griffe")  # extra "docs"
    from docs.docstring_fields import listed

    assert listed(text) == expected
    assert listed(expected) == expected

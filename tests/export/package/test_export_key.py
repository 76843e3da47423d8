"""The key that an export goes on under: another one as soon as the rounded matrices may be others."""

import os
from pathlib import Path

import pytest

from reader_edge_export import ExportOptions
from reader_edge_export.package.source_files import export_key
from reader_edge_export.sources.find import find_source
from reader_edge_export.texts.text_set import TextSet

TEXTS = TextSet(["a text"])
OPTIONS = ExportOptions("int8")


def test_the_same_export_has_the_same_key(source: Path) -> None:
    key = export_key(find_source(source, None), OPTIONS, TEXTS)
    assert len(key) == 64
    for options in (
        ExportOptions("int8", force=True),
        ExportOptions("int8", check="none"),
        ExportOptions("int8", kv="int8"),
    ):
        assert export_key(find_source(source, None), options, TextSet(["a text"])) == key


def test_whatever_changes_the_result_changes_the_key(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_source(source, None)
    keys = [
        export_key(found, OPTIONS, TEXTS),
        export_key(found, ExportOptions("int4"), TEXTS),
        export_key(found, ExportOptions("int8", "fast"), TEXTS),
        export_key(found, ExportOptions("int8", kv="fp32"), TEXTS),
        export_key(find_source(source, 64), OPTIONS, TEXTS),
        export_key(found, OPTIONS, TextSet(["another"])),
    ]
    for name, value in (("processor_name", "another"), ("version_of", "2"), ("_code", "changed")):
        with monkeypatch.context() as patch:
            patch.setattr(f"reader_edge_export.package.source_files.{name}", lambda *_, value=value: value)
            keys.append(export_key(found, OPTIONS, TEXTS))
    weights = source / "model.safetensors"
    state = weights.stat()
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    keys.append(export_key(found, OPTIONS, TEXTS))
    weights.write_bytes(weights.read_bytes() + b"\n")
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    keys.append(export_key(found, OPTIONS, TEXTS))
    assert len(set(keys)) == len(keys)

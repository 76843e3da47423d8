"""The journal of an export and its key: believed as far as the weights bear it out, also after kills."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from reader_edge_export import ExportOptions
from reader_edge_export import journal as journal_module
from reader_edge_export.journal import JOURNAL_NAME, WORK_NAME, Entry, Journal, StoredMatrix, has_work
from reader_edge_export.onnx_graph.weight_file import TensorSpec, WeightFile
from reader_edge_export.package.source_files import export_key
from reader_edge_export.sources.find import find_source
from reader_edge_export.texts.text_set import TextSet
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.package.manifest import WEIGHTS_NAME, FileEntry, file_entry
from tests.export.conftest import TinyModel
from tests.wrong_fields import wrong_fields

NAMES = ["a", "b", "c"]
SIZES = {"a": 3, "b": 70_000, "c": 100, "other": 100}  # at lines, and at a page
Change = Callable[[list[Any]], object]


def store(folder: Path, names: Sequence[str] = NAMES, key: str = "key") -> tuple[list[str], FileEntry]:
    """Write matrices, with what no journal has before each. Returns the names of those that were not there."""
    computed = []
    with Journal(folder, key) as journal, WeightFile(folder, journal) as file:
        for name in names:
            size = SIZES[name]

            def values(name: str = name, size: int = size) -> list[Array]:
                computed.append(name)
                return [np.full(size, ord(name[0]), np.int8), np.arange(size, dtype=np.float32)]

            file.add(np.full(500, size, np.int32), ir.DataType.INT32, "between")
            specs = [TensorSpec.of("values", np.int8, size), TensorSpec.of("scales", np.float32, size)]
            tensors = file.add_matrix([name, "tied"], specs, values)
            for tensor, array in zip(tensors, values(), strict=True):
                np.testing.assert_array_equal(tensor.numpy(), array)
            computed.pop()
    return computed, file.entry


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of an export that was killed behind the last matrix."""
    assert store(tmp_path)[0] == NAMES
    return tmp_path


def test_what_is_noted_is_not_computed_again(folder: Path) -> None:
    whole = file_entry(folder / WEIGHTS_NAME)
    with (folder / WEIGHTS_NAME).open("ab") as file:
        file.write(b"half a tensor")
    with Journal(folder, "key") as journal:
        assert journal.num_matrices == 6
    assert store(folder) == ([], whole)
    assert file_entry(folder / WEIGHTS_NAME) == whole


def rewritten(folder: Path, change: Change) -> None:
    """Change the lines of a journal: parsed, but for those that `change` gives as bytes."""
    path = folder / WORK_NAME / JOURNAL_NAME
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    change(lines)
    path.write_bytes(b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines))


def with_field(name: str, value: object) -> Change:
    """Of the second matrix."""
    return lambda lines: lines[2]["matrix"].update({name: value})


def replaced(*changes: tuple[int, object]) -> Change:
    return lambda lines: [lines.__setitem__(index, value) for index, value in changes]


CHANGES: dict[str, Change] = {
    "half a line": replaced((2, b'{"matrix": {"names": ["b"')),
    "no line end": lambda lines: lines.__setitem__(slice(2, None), [json.dumps(lines[2]).encode()]),
    "no text": replaced((2, b"\xff\xfe\n")),
    "deep": replaced((2, b"[" * 100_000 + b"\n")),
    "a number": replaced((2, 7)),
    "no number": replaced((2, b"NaN\n")),
    "an endless number": replaced((2, b"9" * 5000 + b"\n")),
    "nothing of ours": replaced((2, {})),
    "a key": lambda lines: lines.insert(2, lines[0]),
    "a calibration": lambda lines: lines.insert(2, {"calibration": {}}),
    "twice": lambda lines: lines.insert(2, lines[1]),
    "out of order": lambda lines: lines.__setitem__(slice(2, 4), [lines[3], lines[2]]),
    "other names": with_field("names", ["other", "tied"]),
    "elsewhere": with_field("begin", 5000),
    "beyond the file": with_field("end", 2**70),
    "backwards": with_field("end", 0),
    "an infinite place": with_field("begin", float("inf")),
    "another checksum": with_field("sha256", "0" * 64),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_follows_a_line_that_is_not_true_is_done_again(change: Change, folder: Path) -> None:
    whole = file_entry(folder / WEIGHTS_NAME)
    rewritten(folder, change)
    assert store(folder) == (["b", "c"], whole)
    assert file_entry(folder / WEIGHTS_NAME) == whole
    assert store(folder) == ([], whole)


def test_a_line_with_a_wrong_field_counts_for_nothing(folder: Path) -> None:
    journal, right = folder / WORK_NAME / JOURNAL_NAME, {"names": ["b"], "begin": 0, "end": 5, "sha256": "0" * 64}
    key = journal.read_bytes().splitlines()[0]
    lines = [{"matrix": matrix} for _, matrix in wrong_fields(StoredMatrix, right)]
    lines += [entry for _, entry in wrong_fields(Entry, {"key": "a", "calibration": {}})]
    for line in lines:
        journal.write_bytes(b"\n".join([key, json.dumps(line).encode(), b""]))
        assert not has_work(folder, "key")


@pytest.mark.parametrize("change", [replaced((0, {"key": "other"})), replaced((0, b"\n")), list.clear])
def test_a_journal_of_another_key_begins_again(change: Change, folder: Path) -> None:
    whole = file_entry(folder / WEIGHTS_NAME)
    rewritten(folder, change)
    assert not has_work(folder, "key")
    assert store(folder) == (NAMES, whole)
    assert has_work(folder, "key")


def test_a_journal_larger_than_any_begins_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_MAX_BYTES", 100)
    assert not has_work(folder, "key")
    assert store(folder)[0] == NAMES


@pytest.mark.parametrize("num_bytes", [0, 1, 5000])
def test_weights_that_are_lost_are_computed_again(num_bytes: int, folder: Path) -> None:
    whole = file_entry(folder / WEIGHTS_NAME)
    os.truncate(folder / WEIGHTS_NAME, num_bytes)
    assert store(folder) == (NAMES if num_bytes < 5000 else ["b", "c"], whole)


def test_other_bytes_between_matrices_end_what_is_taken(folder: Path) -> None:
    rewritten_weights = bytearray((folder / WEIGHTS_NAME).read_bytes())
    rewritten_weights[10] ^= 1
    (folder / WEIGHTS_NAME).write_bytes(rewritten_weights)
    assert store(folder)[0] == NAMES


def test_a_matrix_that_is_not_the_next_ends_what_is_taken(folder: Path) -> None:
    computed, entry = store(folder, ["a", "other", "b"])
    assert computed == ["other", "b"]
    assert file_entry(folder / WEIGHTS_NAME) == entry
    assert store(folder, ["a", "other", "b"]) == ([], entry)


def test_another_calibration_forgets_matrices_and_notes(folder: Path) -> None:
    with Journal(folder, "key") as journal:
        journal.add_calibration({"a": 1})
        assert not journal.has_matrices
        journal.record("loss", 0.1)
    with Journal(folder, "key") as journal:
        assert (journal.calibration, journal.num_matrices, journal.results) == ({"a": 1}, 0, {"loss": 0.1})
        journal.add_calibration({"a": 2})
        assert journal.results == {}
    with Journal(folder, "key") as journal:
        assert (journal.calibration, journal.results) == ({"a": 2}, {})


def test_notes_are_kept_through_kills(folder: Path) -> None:
    for number in range(2):
        with Journal(folder, "key") as journal:
            assert journal.results == dict.fromkeys(map(str, range(number)), 0)
            journal.record(str(number), 0)
    assert store(folder)[0] == []
    with Journal(folder, "key") as journal:
        assert journal.results == {"0": 0, "1": 0}


def test_notes_behind_a_matrix_that_is_lost_are_lost(folder: Path) -> None:
    with Journal(folder, "key") as journal:
        journal.record("checks", 1)
    os.truncate(folder / WEIGHTS_NAME, 5000)
    assert store(folder)[0] == ["b", "c"]
    with Journal(folder, "key") as journal:
        assert journal.results == {}


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


@pytest.mark.long
@pytest.mark.timeout(900)
def test_exports_that_are_killed_end_with_the_same_bytes(tiny_model: TinyModel, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("the cat sat on the mat. " * 20)
    command = [
        "-m",
        "tests.durability.kill_exports",
        "--source",
        str(tiny_model("llama")),
        "--check",
        "none",
        "--calibration-text",
        str(text),
    ]
    result = subprocess.run(
        [sys.executable, *command, "--kills", "2", "--interrupts", "1"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    *_, last = result.stdout.splitlines()
    assert last == "3 of 3 are right."
    assert result.stdout.count("| SIGKILL |") == 2
    assert result.stdout.count("| SIGINT |") == 1

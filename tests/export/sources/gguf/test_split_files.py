"""GGUF files in several parts: read by naming the first, and refused where parts are missing, wrong or mixed."""

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.summary import summary_of
from reader_edge_runtime.errors import GgufError
from reader_edge_runtime.package.manifest import MANIFEST_NAME
from tests.export.gguf_models import build_source, write_model
from tests.gguf_files import raw_gguf, small_vocabulary, split_gguf, write_small


def uint16(value: int) -> bytes:
    return struct.pack("<H", value)


@pytest.fixture
def joined(tmp_path: Path) -> Path:
    return write_small(tmp_path / "small.gguf", small_vocabulary())


@pytest.fixture
def first(joined: Path) -> Path:
    """Of four parts."""
    return split_gguf(joined, 3)


def test_the_first_part_stands_for_all(joined: Path, first: Path) -> None:
    whole, parts = GgufFile.open(joined), GgufFile.open(first)
    assert [path.name for path in parts.paths] == [f"small-0000{number}-of-00004.gguf" for number in (1, 2, 3, 4)]
    assert list(parts.tensors) == list(whole.tensors)
    for name in whole.tensors:
        np.testing.assert_array_equal(parts.values(name), whole.values(name))
    summary = summary_of(first)
    assert summary.refusal is None
    assert summary.num_bytes == sum(path.stat().st_size for path in first.parent.iterdir())
    assert find_source(first, None).files == parts.paths


@pytest.mark.long
@pytest.mark.parametrize("precision", ["keep", "int8", "int4"])
def test_a_package_is_that_of_the_joined_file_byte_for_byte(precision: str, tmp_path: Path) -> None:
    model = build_source("llama", tmp_path / "source")
    path = write_model(model, tmp_path, gguf.GGMLQuantizationType.Q8_0)
    first = split_gguf(path, 5)
    for source, name in ((path, "whole"), (first, "parts")):
        export_model(source, tmp_path / name, ExportOptions(precision))
    whole, parts = (tmp_path / name for name in ("whole", "parts"))
    names = sorted(file.name for file in whole.iterdir())
    assert names == sorted(file.name for file in parts.iterdir())
    for name in names:
        if name != MANIFEST_NAME:  # where the model is from
            assert (parts / name).read_bytes() == (whole / name).read_bytes(), name


def test_every_part_counts_in_the_fingerprint(first: Path) -> None:
    source = find_source(first, None)
    before = source.fingerprint()
    last = max(first.parent.iterdir())
    content = last.read_bytes()
    last.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(last, ns=(0, 0))
    with pytest.raises(GgufError, match=rf"'{last}' changed while it was read"):
        source.fingerprint()
    assert find_source(first, None).fingerprint() != before


def test_a_file_whose_parts_were_joined_is_whole(tmp_path: Path) -> None:
    """`llama-gguf-split --merge` leaves a count of 0."""
    path = write_small(tmp_path / "small-00001-of-00009.gguf", small_vocabulary(), {"split.count": 0})
    assert GgufFile.open(path).paths == [path]


def _part(path: Path, number: int) -> Path:
    return path.with_name(path.name.replace("-00001-", f"-0000{number}-"))


def _remove(first: Path) -> None:
    _part(first, 3).unlink()


def _swap(first: Path) -> None:
    second, third = _part(first, 2), _part(first, 3)
    content = second.read_bytes()
    second.write_bytes(third.read_bytes())
    third.write_bytes(content)


def _copy(first: Path) -> None:
    shutil.copy(_part(first, 2), _part(first, 3))


def _cut(first: Path) -> None:
    last = _part(first, 4)
    last.write_bytes(last.read_bytes()[:-40])


def _of_another_split(first: Path) -> None:
    values = [("split.no", 2, uint16(2)), ("split.count", 2, uint16(5))]
    _part(first, 3).write_bytes(raw_gguf(values))


def _without_tensors(first: Path) -> None:
    values = [("split.no", 2, uint16(2)), ("split.count", 2, uint16(4))]
    _part(first, 3).write_bytes(raw_gguf(values))


def _no_part(first: Path) -> None:
    _part(first, 3).write_bytes(raw_gguf())


def _repeated(first: Path) -> None:
    values = [("split.no", 2, uint16(2)), ("split.count", 2, uint16(4))]
    _part(first, 3).write_bytes(raw_gguf(values, [("token_embd.weight", [4], 0, 0)], bytes(32)))


def _of_another_model(first: Path) -> None:
    values = [("general.architecture", 8, struct.pack("<Q", 4) + b"phi2")]
    _part(first, 3).write_bytes(raw_gguf(values))


def _page(first: Path) -> None:
    _part(first, 3).write_bytes(b"<!DOCTYPE html><html>")


def _pipe(first: Path) -> None:
    _part(first, 3).unlink()
    os.mkfifo(_part(first, 3))


SPOILT = [
    (_remove, r"00003-of-00004.gguf' is missing: 'small-00001-of-00004.gguf' is the first of 4 parts, so fetch all"),
    (_swap, r"00002-of-00004.gguf' is not part 2 of 'small-.*\(it gives 'split.no' as 2\): fetch all parts"),
    (_copy, r"00003-of-00004.gguf' is not part 3 of .*'split.no' as 1"),
    (_cut, r"00004-of-00004.gguf' cannot be read as GGUF .* behind its end"),
    (_of_another_split, r"not part 3 of .*'split.count' as 5"),
    (_without_tensors, r"other parts hold 8 tensors together, where 11 are to be: fetch all parts"),
    (_no_part, r"not part 3 of .*it gives no split.count"),
    (_repeated, r"not part 3 of .*it holds 'token_embd.weight', which an earlier one has"),
    (_of_another_model, r"not part 3 of .*it gives 'general.architecture' as 'phi2'"),
    (_page, r"00003-of-00004.gguf' is a web page"),
    pytest.param(
        *(_pipe, r"00003-of-00004.gguf' is a pipe, not a file"),
        marks=pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders"),
    ),
]


@pytest.mark.parametrize(("spoil", "words"), SPOILT)
def test_missing_wrong_and_mixed_parts_are_one_sentence(spoil: Callable[[Path], None], words: str, first: Path) -> None:
    spoil(first)
    with pytest.raises(GgufError, match=words) as caught:
        GgufFile.open(first)
    assert str(caught.value).count("\n") == 0


def test_any_other_part_names_the_first(first: Path) -> None:
    with pytest.raises(GgufError, match=r"is part 3 of 4: give the first one, 'small-00001-of-00004\.gguf'"):
        GgufFile.open(_part(first, 3))


def test_a_part_under_another_name_says_what_it_must_be_called(first: Path) -> None:
    with pytest.raises(GgufError, match=r"one of 4 parts, but is not called NAME-00001-of-00004\.gguf"):
        GgufFile.open(first.rename(first.with_name("model.gguf")))


@pytest.mark.parametrize("values", [{"split.count": 65535}, {"split.count": "3"}, {"split.count": 2, "split.no": 2}])
def test_counts_that_cannot_be_are_refused(values: dict[str, object], tmp_path: Path) -> None:
    path = write_small(tmp_path / "x-00001-of-00002.gguf", small_vocabulary(), values)
    with pytest.raises(GgufError, match=r"is part \d of .*, which cannot be: fetch all parts"):
        GgufFile.open(path)


def test_parts_lie_in_the_first_ones_folder_whatever_a_header_says(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path = write_small(tmp_path / "folder" / "..-00001-of-00002.gguf", small_vocabulary(), {"split.count": 2})
    with pytest.raises(GgufError, match=r"folder/\.\.-00002-of-00002\.gguf' is missing"):
        GgufFile.open(path)

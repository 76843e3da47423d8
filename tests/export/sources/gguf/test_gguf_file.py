"""A GGUF file's header is read, or refused in one sentence before anything is allocated by what it says."""

import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from reader_edge_export.sources.gguf import gguf_file
from reader_edge_export.sources.gguf.gguf_file import GgufFile, is_dequantizable
from reader_edge_export.sources.gguf.gguf_source import GgufSource
from reader_edge_runtime.errors import GgufError
from tests.export.source_models import load_model
from tests.gguf_files import raw_gguf, small_vocabulary, text_bytes, write_gguf, write_small

F32, HUGE = 0, 1 << 60
UINT32, TEXT, ARRAY = 4, 8, 9


def uint32(value: int) -> bytes:
    return struct.pack("<I", value)


def array(kind: int, length: int, content: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + content


def test_values_and_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    values = {"a.text": "Zürich", "a.size": 7, "a.share": 0.5, "a.flag": True, "a.texts": ["x", ""], "a.sizes": [1, -2]}
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    file = GgufFile.open(write_gguf(tmp_path / "file", "llama", values, {"w": weights, "v": weights[0]}))
    assert file.metadata == {"general.architecture": "llama", **values}
    np.testing.assert_array_equal(file.values("w"), weights)
    np.testing.assert_array_equal(file.values("v"), weights[0])
    assert file.weight_types() == ("F32",)


@pytest.mark.parametrize("kind", [kind for kind in gguf.GGMLQuantizationType if is_dequantizable(kind)])
def test_every_type_has_the_values_that_the_library_gives_it(
    kind: gguf.GGMLQuantizationType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read a few rows at a time, too."""
    block_size, type_size = gguf.GGML_QUANT_SIZES[kind]
    shape = (5, 3, 2 * block_size)
    num_bytes = 30 * type_size
    # Small bytes, so that no scale among them is infinite.
    data = np.random.default_rng(0).integers(0, 60, num_bytes, dtype=np.uint8)
    path = tmp_path / "file"
    path.write_bytes(raw_gguf(tensors=[("w", shape[::-1], kind, 0)], data=data.tobytes()))
    monkeypatch.setattr(gguf_file, "_CHUNK_BYTES", 5 * type_size)
    expected = gguf.dequantize(data.reshape(15, -1), kind).reshape(shape)
    np.testing.assert_array_equal(GgufFile.open(path).values("w"), expected)


ATTACKS = {
    "no GGUF file": [b"GGU", b"PRECIOUS" * 9],
    "is empty: fetch it again": [b""],
    "a format that GGUF replaced": [struct.pack("<II", 0x67676A74, 3) + bytes(64), b"lmgg" + bytes(64)],
    "is a web page": [b"<!DOCTYPE html><html>", b"<html><head>"],
    "version 1,.*converted since August 2023": [raw_gguf(version=1)],
    "version 4.*update reader-edge": [raw_gguf(version=4)],
    "big-endian machines.*gguf-convert-endian FILE little": [raw_gguf(version=3 << 24), raw_gguf(version=2 << 24)],
    "counts": [raw_gguf(counts=(HUGE, 0)), raw_gguf(counts=(0, HUGE))],
    r"does not end in it\): fetch it again\.$": [
        raw_gguf(counts=(0, 1)),
        raw_gguf(counts=(9, 0)),
        raw_gguf([("a", TEXT, struct.pack("<Q", 1 << 20))]),
        raw_gguf([("a", ARRAY, array(UINT32, 1 << 20))]),
        raw_gguf([("a", ARRAY, array(TEXT, 1 << 20))]),
    ],
    "'a name' is a text of": [raw_gguf([("a" * (1 << 17), UINT32, uint32(1))])],
    "a text of": [raw_gguf([("a", TEXT, struct.pack("<Q", HUGE))]), raw_gguf()[:16] + struct.pack("<QQ", 1, HUGE)],
    "an array of": [raw_gguf([("a", ARRAY, array(UINT32, HUGE))]), raw_gguf([("a", ARRAY, array(TEXT, HUGE))])],
    "value type 9": [raw_gguf([("a", ARRAY, array(ARRAY, 1, array(ARRAY, 1)))])],
    "value type 13": [raw_gguf([("a", 13, b"")]), raw_gguf([("a", ARRAY, array(13, 1))])],
    "not UTF-8": [raw_gguf([(b"\xff", UINT32, uint32(1))]), raw_gguf([("a", TEXT, text_bytes(b"\xff"))])],
    "comes twice": [
        raw_gguf([("a", UINT32, uint32(1))] * 2),
        raw_gguf(tensors=[("w", [1], F32, 0), ("w", [1], F32, 32)], data=bytes(64)),
    ],
    "alignment": [
        *(raw_gguf([("general.alignment", UINT32, uint32(value))]) for value in (0, 1, 24, 1 << 31)),
        raw_gguf([("general.alignment", TEXT, text_bytes("32"))]),
    ],
    "dimensions": [raw_gguf(tensors=[("w", [1] * num, F32, 0)], data=bytes(64)) for num in (0, 5)],
    "the shape": [raw_gguf(tensors=[("w", [4, size], F32, 0)], data=bytes(64)) for size in (0, 1 << 63)],
    "the type 99, .*does not know.*weights of other types": [raw_gguf(tensors=[("w", [4], 99, 0)], data=bytes(64))],
    "rows of 33": [raw_gguf(tensors=[("w", [33], 2, 0)], data=bytes(64))],
    "at offset 8": [raw_gguf(tensors=[("w", [4], F32, 8)], data=bytes(64))],
    "bytes behind its end": [
        raw_gguf(tensors=[("w", [4], F32, 64)], data=bytes(64)),
        raw_gguf(tensors=[("w", [4], F32, HUGE)], data=bytes(64)),
        raw_gguf(tensors=[("w", [1 << 39, 1 << 39], F32, 0)], data=bytes(64)),
    ],
    "lie upon each other": [raw_gguf(tensors=[("v", [16], F32, 0), ("w", [4], F32, 32)], data=bytes(64))],
}


@pytest.mark.parametrize(
    ("words", "number"), [(words, number) for words, files in ATTACKS.items() for number in range(len(files))]
)
def test_what_cannot_be_is_one_sentence(words: str, number: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(ATTACKS[words][number])
    with pytest.raises(GgufError, match=words) as caught:
        GgufFile.open(tmp_path / "file")
    assert str(caught.value).count("\n") == 0
    assert str(tmp_path / "file") in str(caught.value)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file", small_vocabulary())
    content = path.read_bytes()
    GgufFile.open(path)
    for length in np.linspace(0, len(content) - 1, 60, dtype=int):
        path.write_bytes(content[:length])
        with pytest.raises(GgufError):
            GgufFile.open(path)


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "file", "llama", {}, {"w": np.ones((8, 8), np.float32)})
    file = GgufFile.open(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(GgufError, match="became shorter"):
        file.values("w")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
def test_a_pipe_in_a_files_place_is_not_waited_for(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "file", "llama", {}, {"w": np.ones((8, 8), np.float32)})
    file = GgufFile.open(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="seek"):
        file.values("w")


def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """Else a package would hold the weights of one model and the fingerprint of another."""
    path = write_small(tmp_path / "file", small_vocabulary())
    source = GgufSource.of(GgufFile.open(path), None)
    source.fingerprint()
    path.write_bytes(path.read_bytes()[:-8] + b"\1" * 8)
    os.utime(path, ns=(0, 0))
    for read in (source.fingerprint, lambda: load_model(source)):
        with pytest.raises(GgufError, match="changed while it was read"):
            read()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    weights = np.ones((8, 8), np.float32)
    weights[3, 3] = value
    file = GgufFile.open(write_gguf(tmp_path / "file", "llama", {}, {"w": weights}))
    with pytest.raises(GgufError, match="'w' that are not finite"):
        file.values("w")

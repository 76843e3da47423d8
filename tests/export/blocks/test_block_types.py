"""The table of block types, and blocks taken apart: the values that the library gives them, bit for bit."""

import re

import gguf
import numpy as np
import pytest

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.blocks.blocks import Blocks, unpack_blocks
from reader_edge_export.blocks.native_header import header
from tests.conftest import ROOT
from tests.gguf_files import random_rows


@pytest.fixture(params=BLOCK_TYPES)
def kind(request: pytest.FixtureRequest) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[request.param]


def test_the_header_of_the_kernels_is_the_table() -> None:
    assert (ROOT / "native" / "src" / "products" / "gguf" / "gguf_types.h").read_text(encoding="utf-8") == header()


def test_types_are_as_large_as_the_library_has_them(kind: gguf.GGMLQuantizationType) -> None:
    block_type = BLOCK_TYPES[kind.name]
    assert (block_type.unit_inputs, block_type.unit_bytes) == gguf.GGML_QUANT_SIZES[kind]


@pytest.mark.parametrize("page", ["docs/explanation/quantisation.md", "docs/how-to/gguf.md", "native/README.md"])
def test_pages_that_name_the_types_name_them_all(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert not [name for name in BLOCK_TYPES if not re.search(rf"\b{name}(Linear)?\b", text)]


def test_blocks_have_the_bits_of_the_library(kind: gguf.GGMLQuantizationType) -> None:
    rows = random_rows(kind, (37, 768), np.random.default_rng(0))
    expected = gguf.dequantize(rows, kind)
    blocks = unpack_blocks(BLOCK_TYPES[kind.name], rows)
    assert blocks.shape == (37, 768)
    assert np.abs(expected).max() > 0.01
    np.testing.assert_array_equal(blocks.dequantized(slice(None)).view(np.uint32), expected.view(np.uint32))
    np.testing.assert_array_equal(blocks.dequantized(slice(30, 99)), expected[30:])


def test_matrices_side_by_side_keep_their_values(kind: gguf.GGMLQuantizationType) -> None:
    rng = np.random.default_rng(1)
    parts = [random_rows(kind, (num_outputs, 256), rng) for num_outputs in (3, 18)]
    joined = Blocks.joined([unpack_blocks(BLOCK_TYPES[kind.name], rows) for rows in parts])
    expected = np.concatenate([gguf.dequantize(rows, kind) for rows in parts])
    np.testing.assert_array_equal(joined.dequantized(slice(None)), expected)


def test_blocks_take_no_more_room_than_in_the_file(kind: gguf.GGMLQuantizationType) -> None:
    rows = random_rows(kind, (16, 512), np.random.default_rng(2))
    blocks = unpack_blocks(BLOCK_TYPES[kind.name], rows)
    num_bytes = sum(array.nbytes for array in blocks.arrays.values())
    assert list(blocks.arrays) == list(blocks.block_type.parts)
    assert num_bytes <= 1.03 * rows.nbytes  # six bits of a scale are eight


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q8_0", "Q6_K", "MXFP4"])
def test_extreme_codes_and_nought_keep_their_values(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    rows = random_rows(kind, (4, 256), np.random.default_rng(3))
    rows[0], rows[1], rows[2] = 0, 0x7B, 0xFB
    rows[3, :] = 0x80
    expected = gguf.dequantize(rows, kind)
    blocks = unpack_blocks(BLOCK_TYPES[name], rows)
    np.testing.assert_array_equal(blocks.dequantized(slice(None)).view(np.uint32), expected.view(np.uint32))


def test_every_power_of_two_and_every_level_keeps_its_value() -> None:
    kind = gguf.GGMLQuantizationType.MXFP4
    rows = np.zeros((253, 17), np.uint8)  # beyond are infinite weights
    rows[:, 0] = np.arange(253)
    rows[:, 1:] = np.arange(16) * 17
    blocks = unpack_blocks(BLOCK_TYPES["MXFP4"], rows)
    expected = gguf.dequantize(rows, kind)
    assert (expected[0, 1], expected[252, 7]) == (2.0**-128, 1.5 * 2.0**127)
    np.testing.assert_array_equal(blocks.dequantized(slice(None)).view(np.uint32), expected.view(np.uint32))

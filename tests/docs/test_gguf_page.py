"""The pages on GGUF files and on models name all that is read by its name."""

from pathlib import Path

import pytest

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.sources.generation import _ENDS, _ENDS_BESIDE
from reader_edge_export.sources.gguf.tokenizer_kind import PRE_TOKENIZERS

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

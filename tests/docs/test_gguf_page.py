"""The page on GGUF files names all that is read by its name."""

from pathlib import Path

import pytest

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.sources.gguf.pre_tokenizer import PRE_TOKENIZERS
from reader_edge_export.sources.gguf.vocabulary import _ENDS, _ENDS_IF_CONTROL

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "gguf.md").read_text("utf-8")


@pytest.mark.parametrize("name", [*PRE_TOKENIZERS, *_ENDS, *_ENDS_IF_CONTROL])
def test_names_of_tokenizers_and_of_tokens_that_end_an_answer_are_listed(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_the_types_that_stay_in_their_blocks_are_listed() -> None:
    assert f"| {', '.join(BLOCK_TYPES)} | they stay as they are" in PAGE

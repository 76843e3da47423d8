"""A vocabulary written into a GGUF file and read again; pieces for one."""

from pathlib import Path
from typing import Any

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.vocabulary import GgufVocabulary, vocabulary_of
from tests.gguf_files import write_gguf


def read(path: Path, values: dict[str, Any]) -> GgufVocabulary:
    """The vocabulary of a file with these values."""
    return vocabulary_of(GgufFile.open(write_gguf(path, "llama", values, {})))


PIECES = {  # with their scores
    piece: -float(rank)
    for rank, piece in enumerate(
        ["▁a", "ab", "▁ab", "ba", "▁▁", "aa", "aab", "bab", "▁", "a", "b", "c", "cc", "▁c", "é"]
    )
}

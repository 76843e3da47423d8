"""Whether a file's model computes what its module does; vocabularies written and read again."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.vocabulary import GgufVocabulary, vocabulary_of
from tests.export.source_models import load_model
from tests.gguf_files import write_gguf
from tests.tiny_models import VOCAB_SIZE

LIMIT = 1e-5
TOKENS = torch.from_numpy(np.random.default_rng(0).integers(2, VOCAB_SIZE, (2, 40)))


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(TOKENS, use_cache=False).logits
    return found


def check(path: Path, model: PreTrainedModel, max_context: int | None = None) -> None:
    """The file's model gives the module's logits, which depend on what the module has."""
    expected = logits(model)
    assert expected.abs().max() > 0.5  # else the limit says nothing
    loaded = load_model(find_source(path, max_context))
    assert (logits(loaded) - expected).abs().max() < LIMIT


def read(path: Path, values: dict[str, Any]) -> GgufVocabulary:
    """The vocabulary of a file with these values."""
    return vocabulary_of(GgufFile.open(write_gguf(path, "llama", values, {})))


PIECES = {  # with their scores
    piece: -float(rank)
    for rank, piece in enumerate(
        ["▁a", "ab", "▁ab", "ba", "▁▁", "aa", "aab", "bab", "▁", "a", "b", "c", "cc", "▁c", "é"]
    )
}

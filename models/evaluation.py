"""How well the demo model predicts documents it was not trained on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from models.corpus import Document

#: Documents longer than this many tokens are scored in separate windows, each without a view
#: of the one before. This overstates the perplexity a little, and keeps the score comparable
#: between models of different context lengths.
WINDOW = 1024

Encoded = tuple[Document, NDArray[np.int32]]


@dataclass(slots=True)
class Score:
    """Summed cross-entropy of some documents."""

    documents: int = 0
    tokens: int = 0
    byte_count: int = 0
    nats: float = 0.0

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats per token."""
        return self.nats / self.tokens

    def summary(self) -> dict[str, float]:
        """The figures that ``evaluation.json`` records."""
        return {
            "documents": self.documents,
            "tokens_scored": self.tokens,
            "bytes": self.byte_count,
            "loss_nats_per_token": round(self.loss, 4),
            "perplexity_per_token": round(math.exp(self.loss), 3),
            "bits_per_byte": round(self.nats / math.log(2) / self.byte_count, 4),
        }


@torch.no_grad()
def score_tokens(model: LlamaForCausalLM, tokens: NDArray[np.int32]) -> tuple[int, float]:
    """Returns (tokens predicted, summed loss in nats) of one document ending in end-of-text.

    No token stands before a document, so its first token has no prediction and is not scored;
    the end-of-text token is. Windows overlap by one token, so no other token is skipped.
    """
    nats = 0.0
    for start in range(0, len(tokens) - 1, WINDOW):
        window = torch.from_numpy(tokens[start : start + WINDOW + 1].astype(np.int64))[None]
        logits = model(input_ids=window[:, :-1], use_cache=False).logits
        nats += float(cross_entropy(logits[0].float(), window[0, 1:], reduction="sum"))
    return len(tokens) - 1, nats


def evaluate(model: LlamaForCausalLM, documents: Sequence[Encoded]) -> dict[str, Score]:
    """Scores every corpus and, under ``all``, everything together."""
    scores: dict[str, Score] = defaultdict(Score)
    model.train(False)
    for document, tokens in documents:
        count, nats = score_tokens(model, tokens)
        for name in (document.corpus, "all"):
            score = scores[name]
            score.documents += 1
            score.tokens += count
            score.byte_count += len(document.text.encode())
            score.nats += nats
    model.train()
    return dict(scores)

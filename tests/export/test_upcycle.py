"""A mixture that is made of a dense model has its neurons, others for each expert, and says about the same."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from models.upcycle import KEPT_SHARE, NUM_DENSE_LAYERS, NUM_EXPERTS, mixture_of
from tests.export.whole_models import chain_logits


def test_experts_are_parts_of_the_mlp(tiny_model: Callable[[str], Path]) -> None:
    dense = AutoModelForCausalLM.from_pretrained(tiny_model("lfm2")).eval()
    mixture = mixture_of(dense).eval()
    columns = dense.model.layers[-1].feed_forward.w2.weight.T / KEPT_SHARE
    kept = []
    for expert in mixture.model.layers[-1].feed_forward.experts.down_proj:
        is_kept = (columns[:, None] == expert.T).all(-1).any(-1)
        assert is_kept.sum() == int(KEPT_SHARE * len(columns)) == expert.shape[1]
        kept.append(is_kept.tolist())
    assert len(np.unique(kept, axis=0)) == NUM_EXPERTS
    for old, new in zip(dense.model.layers[:NUM_DENSE_LAYERS], mixture.model.layers, strict=False):
        assert torch.equal(old.feed_forward.w2.weight, new.feed_forward.w2.weight)
    both = [chain_logits(model, list(range(3, 30))).flatten() for model in (dense, mixture)]
    assert torch.corrcoef(torch.stack(both))[0, 1] > 0.9

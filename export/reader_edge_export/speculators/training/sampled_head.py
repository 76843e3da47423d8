"""A target's logit head as training can afford it: ids that are often named, and a sample of all others."""

import math

import numpy as np
import torch

from reader_edge_runtime.arrays import Float32Array, Int32Array

_MOST_OTHERS = 2048


class SampledHead(torch.nn.Linear):
    """The rows of a target, which are not trained: logits (..., V).

    In training, logits (..., ids + S): of these ids, and of S others, each raised by the logarithm of how many of the
    others it stands for. So what a network learns is pushed off all that it could name.
    """

    def __init__(self, rows: Float32Array, ids: Int32Array) -> None:
        """rows: (V, E)."""
        vocab_size, size = rows.shape
        super().__init__(size, vocab_size, bias=False, device="meta")
        self.weight = torch.nn.Parameter(torch.from_numpy(rows), requires_grad=False)
        others = np.setdiff1d(np.arange(vocab_size), ids)
        sample = np.random.default_rng(0).permutation(others)[:_MOST_OTHERS]
        raised = torch.zeros(len(ids) + len(sample))
        raised[len(ids) :] = math.log(len(others) / len(sample)) if len(sample) else 0.0
        self.sampled: torch.Tensor
        self.raised: torch.Tensor
        self.register_buffer("sampled", self.weight[torch.from_numpy(np.concatenate([ids, sample])).long()])
        self.register_buffer("raised", raised)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(states)
        return torch.nn.functional.linear(states, self.sampled, self.raised)

"""KL divergence and top-1 agreement of one model's next tokens with another's, over many tokens."""

import numpy as np

from reader_edge_runtime.arrays import Float32Array


class KlDivergence:
    """Collects rows of logits of a reference and of a model, at the same tokens.

    kl_nats: KL(reference || model) of every row so far. num_equal: rows where both models' first choice is the
        same token.
    """

    def __init__(self) -> None:
        self.kl_nats: list[float] = []
        self.num_equal = 0

    def add(self, expected: Float32Array, logits: Float32Array) -> None:
        """Rows of the reference and of the model, float32 (N, V) both."""
        self.kl_nats += [_kl_nats(*rows) for rows in zip(expected, logits, strict=True)]
        self.num_equal += int((expected.argmax(axis=1) == logits.argmax(axis=1)).sum())

    def figures(self) -> dict[str, float]:
        """Mean and 99th percentile of the KL divergence in nats, the share of equal first choices, the tokens."""
        return {
            "mean_kl_nats": float(np.mean(self.kl_nats)),
            "p99_kl_nats": float(np.percentile(self.kl_nats, 99)),
            "top1_agreement": self.num_equal / len(self.kl_nats),
            "held_out_tokens": float(len(self.kl_nats)),
        }


def _kl_nats(expected: Float32Array, logits: Float32Array) -> float:
    """KL divergence of two rows (V,), summed in float64: V is up to 250,000, and a good package strays by 0.001.

    A row at a time stays in the processor's cache, which halves the time.
    """
    expected = expected - expected.max()
    logits = logits - logits.max()
    weights = np.exp(expected)
    total = weights.sum(dtype=np.float64)
    weights *= np.subtract(expected, logits, out=expected)
    other_total = np.exp(logits, out=logits).sum(dtype=np.float64)
    return float(weights.sum(dtype=np.float64) / total - np.log(total) + np.log(other_total))

"""Quality: KL divergence of a package against the fp32 source over held-out texts."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from reader_edge_export.package.pass_chain import PassChain
from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ParityError
from reader_edge_runtime.forward_result import ForwardResult

MAX_MEAN_KL = 1.0  # nats; beyond this the text is another text

# About a minute on two cores: all held-out texts up to 0.4 billion parameters, then less, but never less than is worth
# measuring on.
_MAX_TOKEN_PARAMETERS = 2_500_000_000_000
_MIN_TOKENS = 1000
_CHUNK = 64


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


def max_quality_tokens(num_parameters: int) -> int:
    """How many tokens a model of this size is measured on, at most."""
    return max(_MIN_TOKENS, _MAX_TOKEN_PARAMETERS // num_parameters)


@dataclass(frozen=True, slots=True)
class QualityAgainstSource:
    """Divergence of a package from its source over texts, each from its first token; see `KlDivergence.figures`.

    Its figures raise ParityError where the package has lost the model.
    """

    model: LayeredModel
    sequences: Sequence[list[int]]

    @property
    def chains(self) -> Sequence[PassChain]:
        return [PassChain.of_text([], token_ids, _CHUNK) for token_ids in self.sequences]

    def figures(self, results: Iterator[ForwardResult]) -> dict[str, float]:
        divergence = KlDivergence()
        for chain, logits_of_source in zip(self.chains, self.model.logits(self.sequences), strict=True):
            expected = logits_of_source.numpy()
            for logits in (result.wanted_logits[0] for result in islice(results, len(chain.passes))):
                divergence.add(expected[: len(logits)], logits)
                expected = expected[len(logits) :]
        figures = divergence.figures()
        if not figures["mean_kl_nats"] <= MAX_MEAN_KL:
            raise ParityError(
                f"The quantised model strays {figures['mean_kl_nats']:.2g} nats per token from the source (limit "
                f"{MAX_MEAN_KL:g}): export with a higher precision."
            )
        return figures


def source_figures(weight_types: Sequence[str]) -> dict[str, float]:
    """Bits of the source's coarsest weights where it came rounded itself: then its fp32 form is not the original.

    weight_types: names of GGUF types, such as "Q4_1" and "F32"; none for a source in full precision.
    """
    bits = [int(number[0]) for name in weight_types if (number := re.search(r"\d+", name))]
    return {"source_weight_bits": float(min(bits))} if bits and min(bits) < 16 else {}

"""What rounding the weights costs: a package against the fp32 source over a text."""

import torch
from transformers import PreTrainedModel

from reader_edge_export.parity import logits_after
from reader_edge_export.sources.module import chain_logits
from reader_edge_runtime.errors import ExportError, ParityError
from reader_edge_runtime.target import Target

MAX_MEAN_KL = 1.0  # nats; beyond this the text is another text
MAX_TOKENS = 1024
_WINDOW = 256
_CHUNK = 64


def check_quality(target: Target, model: PreTrainedModel, text_ids: list[int]) -> dict[str, float]:
    """Top-1 agreement and mean KL divergence (source against package, nats) over windows of a text.

    Raises ParityError where the package has lost the model, ExportError for a text without tokens.
    """
    if not text_ids:
        raise ExportError("The tokenizer finds no token in the calibration text: give another text.")
    window = min(_WINDOW, target.manifest.max_context)
    num_equal = num_tokens = 0
    total_kl = 0.0
    for start in range(0, min(len(text_ids), MAX_TOKENS), window):
        token_ids = text_ids[start : start + window]
        expected = chain_logits(model, token_ids)
        logits = torch.from_numpy(logits_after(target, [], token_ids, _CHUNK))
        num_equal += int((logits.argmax(dim=1) == expected.argmax(dim=1)).sum())
        total_kl += float(_kl(expected, logits).sum())
        num_tokens += len(token_ids)
    mean_kl = total_kl / num_tokens
    if not mean_kl <= MAX_MEAN_KL:
        raise ParityError(
            f"The quantised model strays {mean_kl:.2g} nats per token from the source (limit {MAX_MEAN_KL:g}): "
            "export with a higher precision."
        )
    agreement = num_equal / num_tokens
    return {"top1_agreement": agreement, "mean_kl_nats": mean_kl, "calibration_tokens": float(num_tokens)}


def _kl(expected: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """KL divergence of each row, (N,)."""
    log_expected, log_probabilities = expected.log_softmax(dim=1), logits.log_softmax(dim=1)
    return (log_expected.exp() * (log_expected - log_probabilities)).sum(dim=1)

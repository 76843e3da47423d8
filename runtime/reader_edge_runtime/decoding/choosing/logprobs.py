"""Log-probabilities of the tokens of an answer, as the target itself gives them."""

from typing import NamedTuple

import numpy as np

from reader_edge_runtime.arrays import Float32Array


class TokenLogprob(NamedTuple):
    """Natural logarithms of probabilities at temperature 1, before penalties and biases.

    logprob: of the token that was chosen. top: the most likely tokens' ids and logprobs, best first, equals by id.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprob(logits: Float32Array, token_id: int, num_top: int) -> TokenLogprob:
    """What logits (V,) give a token, and the `num_top` best: the same bits give the same numbers."""
    best = logits.max()
    total = float(np.log(np.exp(logits - best).sum(dtype=np.float64)))

    def logprob(each: int) -> float:
        return float(logits[each] - best) - total

    num_top = min(num_top, len(logits))
    if not num_top:
        return TokenLogprob(logprob(token_id))
    least = np.partition(logits, -num_top)[-num_top]
    candidates = np.flatnonzero(logits >= least)
    order = np.argsort(-logits[candidates], kind="stable")[:num_top]
    return TokenLogprob(logprob(token_id), tuple((int(each), logprob(int(each))) for each in candidates[order]))

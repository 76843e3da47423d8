"""What a judge sees of a token that is not the model's choice: figures of target and draft at the place."""

import numpy as np

from reader_edge_runtime.acceptance import Choices
from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.lossy.lossy_rule import Mismatch
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.text.tokenizer import Tokenizer

MOST_NATS = 2.3  # by which the token is less likely: a tenth; judges hear of none beyond it, as AutoJudge's of 0.01
NAMES = (
    "nats below the choice",
    "ln p of the choice",
    "entropy",
    "rank of the choice",
    "rank of the token",
    "share of the draft",
    "same text but for case and space",
)
_TINY = 1e-12


class JudgeFigures:
    """Of one model. size: how many numbers a judge sees; the last hidden_size of them are the state of the node before,
    of a package that tells states.
    """

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer) -> None:
        self.has_states = manifest.hidden_size is not None
        self.size = num_figures(manifest)
        self._tokenizer = tokenizer

    def of(self, choices: Choices, node: int, found: Mismatch) -> Float64Array:
        """(size,), of a pass that tells log-sum-exps, and states where there are some."""
        p = choices.probabilities(node).astype(np.float64)
        shares = np.maximum([*p, 1 - p.sum()], _TINY)  # all that is not reported is one
        values = choices.tree.values
        is_drafted = found.child >= 0 and values[node] > 0
        figures = (
            found.nats,
            np.log(shares[found.own_rank]),
            -(shares * np.log(shares)).sum(),
            found.own_rank,
            found.rank,
            values[found.child] / values[node] if is_drafted else 0.0,
            self._text(found.token_id) == self._text(found.own),
        )
        states = [choices.hidden_state(node)] if self.has_states else []
        return np.concatenate([np.array(figures, np.float64), *states])

    def _text(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id]).strip().casefold()


def num_figures(manifest: Manifest) -> int:
    """Numbers that a judge sees of a model's tokens."""
    return len(NAMES) + (manifest.hidden_size or 0)

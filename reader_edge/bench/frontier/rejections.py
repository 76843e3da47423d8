"""How often the target says something that was not drafted: counted, and expected.

Expected rejections are the sum over all positions of the total variation between what is drafted and what the target
says there ("A Theoretical Perspective for Speculative Decoding Algorithm", NeurIPS 2024, arXiv 2411.00841).
Our drafts are certain of their tokens, so at a node it is 1 - p of the drafted token, of several the sum of their p;
where a draft has come to its end, it is 1. Each rejection ends a pass.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge.bench.recording import RecordedTurn
from reader_edge_runtime.draft_tree import DraftTree


@dataclass(slots=True)
class Rejections:
    """Of num_tokens that a draft might have held. An answer's last token ends its last pass, whatever is drafted,
    and is not among them."""

    num_tokens: int = 0
    counted: int = 0
    expected: float = 0.0

    def add(self, tree: DraftTree, token_ids: Sequence[int], said: Iterable[Mapping[int, float]]) -> None:
        """Count a step. token_ids: what it emitted. said: the target's probabilities at each of these, by token."""
        node = 0
        for token_id, probabilities in zip(token_ids, said, strict=True):
            drafted = {tree.token_ids[i]: i for i in range(node + 1, len(tree)) if tree.parents[i] == node}
            self.num_tokens += 1
            self.expected += 1 - sum(probabilities.get(each, 0.0) for each in drafted)
            self.counted += token_id not in drafted
            node = drafted.get(token_id, len(tree))


def said_by_target(turn: RecordedTurn, position: int, temperature: float) -> Mapping[int, float]:
    """Probabilities of a turn's output token at `position`, by token, as the target was asked for one.

    At temperature 0 the recorded token is certain. Else the reported successors share all of it, though others may have
    had some: rejections expected from them are too few. A position that nothing was reported of counts as certain.
    """
    reported = _logits_after(turn, len(turn.prompt) + position - 1) if temperature > 0 else {}
    if not reported:
        return {turn.output[position]: 1.0}
    highest = max(reported.values())
    shares = {token_id: math.exp((logit - highest) / temperature) for token_id, logit in reported.items()}
    return {token_id: share / sum(shares.values()) for token_id, share in shares.items()}


def _logits_after(turn: RecordedTurn, position: int) -> dict[int, float]:
    """Those of the successors that were reported of a token of prompt or output; empty without a report to trust."""
    if turn.successors is None:
        return {}
    positions, top_ids, top_logits = turn.successors.positions, turn.successors.top_ids, turn.successors.top_logits
    row = int(np.searchsorted(positions, position))
    if row == len(positions) or positions[row] != position or not np.isfinite(top_logits[row]).all():
        return {}
    return dict(zip(top_ids[row].tolist(), top_logits[row].tolist(), strict=True))

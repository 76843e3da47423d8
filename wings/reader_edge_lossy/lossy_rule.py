"""What lossy acceptance rules share: when another token than the target's choice may be taken, and which never."""

from abc import abstractmethod
from collections.abc import Collection, Sequence

import numpy as np

from reader_edge_lossy.deviation import DeviationMeter
from reader_edge_runtime.acceptance import AcceptanceRule, Choices
from reader_edge_runtime.config import GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.rule_config import RuleConfig
from reader_edge_runtime.errors import ConfigError


class GreedyRuleConfig(RuleConfig):
    """Of a rule that compares tokens by the model's own logits."""

    def check(self, config: GenerationConfig) -> None:
        sampling = config.sampling or SamplingConfig()
        if sampling != SamplingConfig(
            top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p, seed=sampling.seed
        ):
            raise ConfigError(
                "Lossy answers are greedy, and compare tokens by the model's own logits: send temperature 0, without "
                "penalties and biases. Of the rules `views` alone takes them."
            )


class LossyRule(AcceptanceRule):
    """Of one answer; it matters only where the model's own choice was not drafted.

    It takes the best drafted token that the pass reported among the likeliest, unless that lies too many nats below the
    model's choice, ends the answer, or is not allowed there. An end that the model chooses is never put off.
    ends: tokens that end answers. num_taken: tokens taken so far.
    """

    def __init__(self, meter: DeviationMeter, ends: Collection[int]) -> None:
        self.name = meter.rule
        self.meter = meter
        self.num_taken = 0
        self._ends = frozenset(ends)

    def next_token(self, choices: Choices, node: int) -> int:
        own = choices.peek(node)
        self.num_taken += 1
        if choices.tree.child(node, own) >= 0:
            return own
        token_id, nats = self._substitute(choices, node, own)
        if token_id != own:
            self.meter.change(nats)
        return token_id

    def report(self, token_ids: Sequence[int]) -> dict[str, object]:
        return self.meter.report(token_ids)

    @abstractmethod
    def max_nats(self, choices: Choices, node: int, rank: int) -> float:
        """How far ln p may fall here; 0 or less takes the model's choice, the `rank`-th of the reported tokens."""

    def _substitute(self, choices: Choices, node: int, own: int) -> tuple[int, float]:
        """The token to emit in place of the model's `own`, and how many nats less likely it is; else `own` and 0."""
        tree = choices.tree
        children = {tree.token_ids[i] for i in range(node + 1, len(tree)) if tree.parents[i] == node}
        token_ids, logits = choices.successors(node)
        ranks = np.flatnonzero(token_ids == own)
        if own in self._ends or not len(ranks) or not children:  # a grammar's choice may be unlikely
            return own, 0.0
        max_nats = self.max_nats(choices, node, int(ranks[0]))
        for token_id, logit in zip(token_ids.tolist(), logits.tolist(), strict=True):
            nats = float(logits[ranks[0]]) - logit
            if max_nats <= 0 or not nats <= max_nats:
                break
            if token_id in children and token_id not in self._ends and choices.allows(token_id):
                return token_id, nats
        return own, 0.0

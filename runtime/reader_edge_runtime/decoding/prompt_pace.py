"""How many prompt tokens are scored between two steps of the answers that run."""

import math
from collections.abc import Sequence

from reader_edge_runtime.decoding.verification import Verification

_MOST_AT_ONCE = 2  # budgets: answers whose drafts were refused wait for them as well


class PromptPace:
    """Keeps prompts in step with tokens: a drafted step gives several and takes longer, and would hold prompts up.

    budget: prompt tokens for each token of the running answers, in the mean, after which no further chunk is begun, so
    that nobody waits long; None scores all prompts that find a slot, which is soonest for requests that came together.
    """

    def __init__(self) -> None:
        self.budget: int | None = None
        self._num_due = 0.0  # budgets

    def earn(self, verifications: Sequence[Verification | None]) -> None:
        """Count the tokens that a step gave."""
        self._num_due += sum(len(each.token_ids) for each in verifications if each is not None) / len(verifications)

    def take(self) -> float:
        """Prompt tokens after which no further chunk is begun now: the whole budgets that are due, one or two."""
        if self.budget is None:
            return math.inf
        num_taken = min(max(1, int(self._num_due)), _MOST_AT_ONCE)
        self._num_due = min(max(0.0, self._num_due - num_taken), 1.0)
        return num_taken * self.budget

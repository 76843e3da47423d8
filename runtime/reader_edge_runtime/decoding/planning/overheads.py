"""Overheads: what steps and drafts take beside the forward pass."""

from dataclasses import dataclass

_MEMORY = 0.1  # weight of the newest value in each mean


@dataclass(slots=True)
class Overheads:
    """Moving means in seconds for one request. Choosing tokens takes as long with drafts as without, and is left out.

    plain_s: a step beside its pass. draft_s: what drafting, and learning from the draft, add to it.
    start_s: what a request's first draft takes beyond that, since it learns the prompt.
    finish_s: learning the answer when the request ends.
    """

    plain_s: float = 5e-5
    draft_s: float = 1e-4
    start_s: float = 3e-4
    finish_s: float = 1e-4

    @property
    def first_draft_s(self) -> float:
        """What a request's first draft takes, and what it takes at the end to have drafted."""
        return self.start_s + self.draft_s + self.finish_s

    def learn_step(self, seconds: float, batch_size: int, num_drafts: int, num_first_drafts: int) -> None:
        """Learn from the seconds that a step took beside its pass."""
        if not num_drafts:
            self.plain_s = _moved(self.plain_s, seconds / batch_size)
            return
        drafting_s = max(0.0, seconds - batch_size * self.plain_s)
        if num_first_drafts:
            self.start_s = _moved(self.start_s, max(0.0, drafting_s - num_drafts * self.draft_s) / num_first_drafts)
        else:
            self.draft_s = _moved(self.draft_s, drafting_s / num_drafts)

    def learn_finish(self, seconds: float) -> None:
        """Learn from the seconds that the drafter took when a request ended."""
        self.finish_s = _moved(self.finish_s, seconds)


def _moved(mean: float, value: float) -> float:
    """A mean that follows its newest values, but no outlier far."""
    return mean + _MEMORY * (min(value, 2 * mean) - mean)

"""How far a tree grows: what a further pass of the speculator promises to bring, against what it takes."""

from collections.abc import Sequence
from dataclasses import dataclass

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.speculator.speculated_tree import Candidate
from reader_edge_runtime.drafting.sources.speculator.step_times import StepTimes

MAX_STEPS = 8
_WIDTHS = (1, 2, 4, 8)  # nodes that a pass may score
_UNTIMED_WIDTH = 4  # where nothing was measured
_FIRST_RATE = 0.35
_MEMORY = 0.03  # weight of the newest draft in a rate


@dataclass(slots=True)
class Progress:
    """Of one draft. num_tokens: that it promises. num_open: how likely it ended at the nodes that were scored last."""

    num_steps: int = 0
    num_tokens: float = 0.0
    num_open: float = 0.0


class Growth:
    """Learns from every pass how many tokens a draft promised more behind it, for what it scored.

    What a draft promises is calibrated by what comes true, so that it need not be waited for. rates: by the number of
    the pass, promised tokens for each that the scored nodes are expected to be reached.
    """

    def __init__(self) -> None:
        self.rates = [_FIRST_RATE] * MAX_STEPS

    def learn(self, progress: Progress, draft: DraftTree) -> None:
        """Compare a draft with the one before the last pass."""
        num_tokens = promised(draft)
        if progress.num_open > 0:
            number = progress.num_steps - 1
            rate = min(max((num_tokens - progress.num_tokens) / progress.num_open, 0.0), 1.0)
            self.rates[number] += _MEMORY * (rate - self.rates[number])
        progress.num_tokens, progress.num_open = num_tokens, 0.0

    def chosen(
        self, progress: Progress, candidates: Sequence[Candidate], token_s: float, times: StepTimes
    ) -> list[Candidate]:
        """The first candidates, as many as a pass over them saves the most time; none where it saves none.

        token_s: seconds of a token without a draft; 0 where nothing was measured.
        """
        if progress.num_steps == MAX_STEPS or not candidates:
            return []
        # A token more a pass saves what one takes with the drafts that there are.
        value_s = self.rates[progress.num_steps] * token_s / (1 + progress.num_tokens)
        best, saved_s = 0 if token_s else _UNTIMED_WIDTH, 0.0
        for width in _WIDTHS if token_s else ():
            gained_s = value_s * sum(each.open for each in candidates[:width]) - times.seconds(width)
            if gained_s > saved_s:
                best, saved_s = width, gained_s
        found = list(candidates[:best])
        if found:
            progress.num_steps += 1
            progress.num_open = sum(each.open for each in found)
        return found


def promised(draft: DraftTree) -> float:
    """Tokens that the better half of a draft promises: about as many nodes as its pass will have."""
    values = sorted(draft.values[1:], reverse=True)
    return sum(values[: (len(values) + 1) // 2])

"""What a proof does one after the other, so that any time it gets is spent on what matters most."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from reader_edge.proof.ways import WIDEST_BATCH, Setting

_USUAL_SHARE = 1 / 16  # of the whole time, for one visit: all that users run is seen within half of it
_OTHER_SHARE = 1 / 40


@dataclass(slots=True, eq=False)
class Visit:
    """One setting on a few questions. left: indices of those that are still to be compared to their ends.

    lap: which visits share their drafters, which so learn from one to the next. share: of the whole time, at most.
    """

    setting: Setting
    left: tuple[int, ...]
    lap: str
    share: float

    def prolong(self) -> None:
        """Ready it to be made again for what is left, with more time and with drafters of its own."""
        self.lap, self.share = f"{self.lap}, again", 4 * self.share


def schedule(usual: Sequence[Setting], others: Sequence[Setting], questions: Sequence[int]) -> list[Visit]:
    """Every setting on every question: first what users run on the first questions, then the rest of it in turn with
    every other combination. questions: their indices, in the order in which they are compared."""
    starts = range(0, len(questions), WIDEST_BATCH)
    groups = [tuple(questions[start : start + WIDEST_BATCH]) for start in starts]
    first = [Visit(each, group, f"usual {group[0]}", _USUAL_SHARE) for group in groups for each in usual]
    second = [Visit(each, group, f"other {group[0]}", _OTHER_SHARE) for group in groups for each in others]
    return [*first[: len(usual)], *_in_turn(first[len(usual) :], second)]


def _in_turn(some: Sequence[Visit], others: Sequence[Visit]) -> Iterator[Visit]:
    for pair in zip_longest(some, others):
        yield from (each for each in pair if each is not None)

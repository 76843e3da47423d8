"""The settings that a proof compares with plain decoding, scheduled as jobs, and the time that each gets."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest

WIDEST_BATCH = 4
_USUAL_SHARE = 1 / 16  # of the whole time, for one job: all that users run is seen within half of it
_OTHER_SHARE = 1 / 40


@dataclass(frozen=True, slots=True)
class Variant:
    """A way of asking and of choosing tokens, and so of comparing answers.

    is_sampled: whether answers are, all or some of them. reads_logits: every choice is made from a logit row, whose
    bits are compared. Otherwise greedy choices are the graph's own best successors, as in production, and tokens alone
    are compared. is_arriving: requests come at random moments while others run, and some are given up. is_restored:
    prompts come from the files that an engine before left.
    """

    name: str
    is_sampled: bool
    reads_logits: bool
    is_arriving: bool = False
    is_restored: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing to compare: who drafts, in which variant, and for how many requests at once."""

    drafter: str
    variant: Variant
    batch_size: int


VARIANTS = (
    Variant("greedy by top ids", is_sampled=False, reads_logits=False),  # as answers are made: no logits are read
    Variant("greedy by logits", is_sampled=False, reads_logits=True),
    Variant("sampled", is_sampled=True, reads_logits=True),
)
BATCH_SIZES = (1, WIDEST_BATCH)
ARRIVAL_VARIANTS = (
    Variant("random arrivals by top ids", is_sampled=True, reads_logits=False, is_arriving=True),
    Variant("random arrivals by logits", is_sampled=True, reads_logits=True, is_arriving=True),
)
RESTORED = Variant("prompts from disk", is_sampled=False, reads_logits=True, is_restored=True)
ARRIVAL_BATCH = 3  # fewer than come, so that some wait in line
_ALL = ("history", "datastore", "logits")
DEFAULT = "context + history + logits"  # what an engine drafts from when nothing else is requested
SOURCE_SETS = {
    "all sources + hostile": frozenset((*_ALL, "hostile")),
    "all sources": frozenset(_ALL),
    **{" + ".join(("context", *few)): frozenset(few) for num in range(3) for few in combinations(_ALL, num)},
}
DRAFTERS = ("stress", *SOURCE_SETS, "none")
ARRIVAL_DRAFTERS = ("stress", "all sources + hostile", DEFAULT, "none")
RESTORED_DRAFTERS = ("all sources + hostile", DEFAULT, "none")


def settings(further: Sequence[str], are_prefixes_kept: bool = True) -> tuple[list[Setting], list[Setting]]:
    """What users run, and every further combination; each in the order in which it is compared.

    further: drafters beside those that every model has. The last of them, else DEFAULT, is what the user runs.
    are_prefixes_kept: whether a prefix cache could keep the model's texts.
    """
    usual = further[-1] if further else DEFAULT
    every = [
        *(
            Setting(name, variant, size)
            for size in BATCH_SIZES
            for variant in VARIANTS
            for name in (*DRAFTERS, *further)
        ),
        *(
            Setting(name, variant, ARRIVAL_BATCH)
            for variant in ARRIVAL_VARIANTS
            for name in (*ARRIVAL_DRAFTERS, *further)
        ),
        *(Setting(name, RESTORED, WIDEST_BATCH) for name in (*RESTORED_DRAFTERS, *further) if are_prefixes_kept),
    ]
    first = sorted((each for each in every if each.drafter == usual), key=_turn)
    return first, [each for each in every if each.drafter != usual]


def _turn(setting: Setting) -> int:
    """Every kind of asking has its turn before any has its second."""
    if setting.batch_size == 1:
        return 0
    return 1 if not setting.variant.reads_logits else 2


@dataclass(slots=True, eq=False)
class Job:
    """A part of a run: its setting on a few questions. left: indices of those still to be compared to their ends.

    group: which jobs share their drafters, which so learn from one to the next. share: of the whole time, at most.
    """

    setting: Setting
    left: tuple[int, ...]
    group: str
    share: float

    def prolong(self) -> None:
        """Ready it to be made again for what is left, with more time and with drafters of its own."""
        self.group, self.share = f"{self.group}, again", 4 * self.share


def schedule(usual: Sequence[Setting], others: Sequence[Setting], questions: Sequence[int]) -> list[Job]:
    """Every setting on every question: first what users run on the first questions, then the rest of it in turn with
    every other combination. questions: their indices, in the order in which they are compared."""
    starts = range(0, len(questions), WIDEST_BATCH)
    groups = [tuple(questions[start : start + WIDEST_BATCH]) for start in starts]
    first = [Job(each, group, f"usual {group[0]}", _USUAL_SHARE) for group in groups for each in usual]
    second = [Job(each, group, f"other {group[0]}", _OTHER_SHARE) for group in groups for each in others]
    return [*first[: len(usual)], *_in_turn(first[len(usual) :], second)]


def _in_turn(some: Sequence[Job], others: Sequence[Job]) -> Iterator[Job]:
    for pair in zip_longest(some, others):
        yield from (each for each in pair if each is not None)


class TimeBudget:
    """seconds: from now on; infinite without a limit. clock: tells seconds."""

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._start = clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._start

    @property
    def is_over(self) -> bool:
        return self.elapsed_s >= self.seconds

    def end_of(self, share: float) -> float:
        """When a share of the whole ends that begins now, in elapsed seconds; never behind the end of all."""
        return min(self.elapsed_s + share * self.seconds, self.seconds)

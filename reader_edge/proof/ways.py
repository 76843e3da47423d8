"""The ways of drafting that a proof compares with plain decoding, in the order of what users run."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

WIDEST_BATCH = 4


@dataclass(frozen=True, slots=True)
class Way:
    """A way of asking and of choosing tokens, and so of comparing answers.

    is_sampled: whether answers are, all or some of them. reads_logits: every choice is made from a logit row, whose
    bits are compared. Otherwise greedy choices are the graph's own best successors, as in production, and tokens alone
    are compared. is_arriving: requests come at random moments while others run, and some are given up.
    """

    name: str
    is_sampled: bool
    reads_logits: bool
    is_arriving: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing to compare: who drafts, in which way, and for how many requests at once."""

    drafter: str
    way: Way
    batch_size: int


WAYS = (
    Way("greedy by top ids", is_sampled=False, reads_logits=False),  # as answers are made: no logits are read
    Way("greedy by logits", is_sampled=False, reads_logits=True),
    Way("sampled", is_sampled=True, reads_logits=True),
)
BATCH_SIZES = (1, WIDEST_BATCH)

ARRIVAL_WAYS = (
    Way("random arrivals by top ids", is_sampled=True, reads_logits=False, is_arriving=True),
    Way("random arrivals by logits", is_sampled=True, reads_logits=True, is_arriving=True),
)
ARRIVAL_BATCH = 3  # fewer than come, so that some wait in line

_ALL = ("history", "datastore", "logits")
DEFAULT = "context + history + logits"  # what an engine drafts from when nothing else is asked for
SOURCE_SETS = {
    "all sources + hostile": frozenset((*_ALL, "hostile")),
    "all sources": frozenset(_ALL),
    **{" + ".join(("context", *few)): frozenset(few) for num in range(3) for few in combinations(_ALL, num)},
}
DRAFTERS = ("stress", *SOURCE_SETS, "none")
ARRIVAL_DRAFTERS = ("stress", "all sources + hostile", DEFAULT, "none")


def settings(further: Sequence[str]) -> tuple[list[Setting], list[Setting]]:
    """What users run, and every further combination; each in the order in which it is compared.

    further: drafters beside those that every model has. The last of them, else DEFAULT, is what the user runs.
    """
    usual = further[-1] if further else DEFAULT
    every = [
        *(Setting(name, way, size) for size in BATCH_SIZES for way in WAYS for name in (*DRAFTERS, *further)),
        *(Setting(name, way, ARRIVAL_BATCH) for way in ARRIVAL_WAYS for name in (*ARRIVAL_DRAFTERS, *further)),
    ]
    first = sorted((each for each in every if each.drafter == usual), key=_turn)
    return first, [each for each in every if each.drafter != usual]


def _turn(setting: Setting) -> int:
    """Every kind of asking has its turn before any has its second."""
    if setting.batch_size == 1:
        return 0
    return 1 if not setting.way.reads_logits else 2

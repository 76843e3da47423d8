"""Whether a head can pay on a target: what a step of it takes beside a pass, and what it would have to bring."""

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch

from reader_edge_export.heads.head_module import HeadModule
from reader_edge_export.heads.rounded_head import rounded_head
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.head_sizes import HeadSizes
from reader_edge_runtime.execution.providers import open_head
from reader_edge_runtime.target import Pass, Target

_ROUNDS = 15
_PAST, _NODES = 128, 4
TOKENS_A_PASS = 2.0  # of chats and questions without a head, at budgets that small models afford


@dataclass(frozen=True, slots=True)
class Payback(ABC):
    """step_s, pass_s: seconds of a step of what drafts, for one node, and of a pass of four nodes.

    most_added: accepted tokens a pass that its kind was ever seen to add.
    """

    most_added: ClassVar[float]

    step_s: float
    pass_s: float

    @property
    def share(self) -> float:
        """What a step takes, as a share of a pass."""
        return self.step_s / self.pass_s

    @property
    def needed(self) -> float:
        """Accepted tokens a pass that it has to add where it is asked in every step."""
        return self.share * TOKENS_A_PASS

    @property
    def can_pay(self) -> bool:
        """Whether that much was ever seen."""
        return self.needed <= self.most_added

    @abstractmethod
    def sentence(self) -> str:
        """The figures, and what follows of them."""


class HeadPayback(Payback):
    """Of a head. usually_added, most_added: at 135M and 8 nodes, after 57,000 tokens, and after five million."""

    __slots__ = ()
    usually_added, most_added = 0.16, 0.46

    def sentence(self) -> str:
        return (
            f"A step of the head takes {1e3 * self.step_s:.2f} ms, {self.share:.3f} of a pass of {_NODES} nodes: it "
            f"pays where it adds clearly more than {self.needed:.2f} accepted tokens a pass; heads were seen to add "
            f"{self.usually_added} after 57,000 tokens, and {self.most_added} after five million."
        )


def measure_payback(target: Target, sizes: HeadSizes) -> HeadPayback:
    """Time an untrained head of these sizes beside its target, in turn."""
    module = HeadModule(sizes, torch.zeros(sizes.hidden), torch.ones(sizes.hidden))
    head = open_head(rounded_head(module, np.arange(sizes.ids, dtype=np.int32)), target.manifest)
    state, pending = np.zeros((1, sizes.hidden), np.float32), np.zeros(1, np.int64)
    wanted = Pass(0, [], [], wants_hidden_states=True)
    return HeadPayback(*timed_in_turn(target, wanted, lambda past: partial(head.guess, state, pending)))


def timed_in_turn(
    target: Target, wanted: Pass, step_behind: Callable[[int], Callable[[], object]]
) -> tuple[float, float]:
    """Median seconds of a step of what drafts, and of a pass of four nodes behind so many tokens.

    wanted: a pass without its trees. step_behind: makes the step, for so many tokens before it.
    """
    past = min(_PAST, target.manifest.max_context - _NODES)
    cache = target.new_cache(1, past + _NODES)
    cache.fill(0, past)
    wanted, step = wanted._replace(trees=[DraftTree.chain([0] * _NODES)], rows=[range(_NODES)]), step_behind(past)
    step_s, pass_s = [], []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        target.forward(cache, wanted)  # which takes the step's matrices out of the caches of the processor
        between = time.perf_counter()
        step()
        step_s.append(time.perf_counter() - between)
        pass_s.append(between - began)
    return statistics.median(step_s), statistics.median(pass_s)

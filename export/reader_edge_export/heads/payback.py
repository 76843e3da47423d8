"""Whether a head can pay on a target: what a step of it takes beside a pass, and what it would have to bring."""

import statistics
import time
from collections.abc import Callable, Sequence
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
MOST_PAST, _NODES = 128, 4
_TOKENS_A_PASS = 2.0  # of chats and questions without a head, at budgets that small models afford


@dataclass(frozen=True, slots=True)
class HeadPayback:
    """step_s, pass_s: seconds of a step of a head, and of a pass of four nodes.

    usually_added, most_added: accepted tokens a pass, at 135M and 8 nodes, after 57,000 tokens, and after five million.
    """

    usually_added: ClassVar[float] = 0.16
    most_added: ClassVar[float] = 0.46

    step_s: float
    pass_s: float

    @property
    def share(self) -> float:
        """What a step takes, as a share of a pass."""
        return self.step_s / self.pass_s

    @property
    def needed(self) -> float:
        """Accepted tokens a pass that it has to add where it is asked in every step."""
        return self.share * _TOKENS_A_PASS

    @property
    def can_pay(self) -> bool:
        """Whether that much was ever seen."""
        return self.needed <= self.most_added

    def sentence(self) -> str:
        """The figures, and what follows of them."""
        return (
            f"A step of the head takes {1e3 * self.step_s:.2f} ms, {self.share:.3f} of a pass of {_NODES} nodes: it "
            f"pays where it adds clearly more than {self.needed:.2f} accepted tokens a pass; heads were seen to add "
            f"{self.usually_added} after 57,000 tokens, and {self.most_added} after five million."
        )


def measure_payback(target: Target, sizes: HeadSizes) -> HeadPayback:
    """Time an untrained head of these sizes beside its target."""
    module = HeadModule(sizes, torch.zeros(sizes.hidden), torch.ones(sizes.hidden))
    head = open_head(rounded_head(module, np.arange(sizes.ids, dtype=np.int32)), target.manifest)
    state, pending = np.zeros((1, sizes.hidden), np.float32), np.zeros(1, np.int64)
    wanted = Pass(0, [DraftTree.chain([0] * _NODES)], [range(_NODES)], wants_hidden_states=True)
    [step_s], pass_s = timed_in_turn(target, wanted, [partial(head.guess, state, pending)])
    return HeadPayback(step_s, pass_s)


def timed_in_turn(target: Target, wanted: Pass, steps: Sequence[Callable[[], object]]) -> tuple[list[float], float]:
    """Median seconds of steps of what drafts, each behind a pass of its own, and of such a pass of one text."""
    num_nodes = len(wanted.trees[0])
    past = min(MOST_PAST, target.manifest.max_context - num_nodes)
    cache = target.new_cache(1, past + num_nodes)
    cache.fill(0, past)
    found: list[list[float]] = [[] for _ in steps]
    pass_s = []
    for _ in range(_ROUNDS):
        for step_s, step in zip(found, steps, strict=True):
            began = time.perf_counter()
            target.forward(cache, wanted)  # which takes the step's matrices out of the caches of the processor
            between = time.perf_counter()
            step()
            step_s.append(time.perf_counter() - between)
            pass_s.append(between - began)
    return [statistics.median(step_s) for step_s in found], statistics.median(pass_s)

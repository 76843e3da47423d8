"""Whether a head can pay on a target: what a step of it takes beside a pass, and what it would have to bring."""

import statistics
import time
from dataclasses import dataclass

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
# Tokens a pass that heads were seen to add at 135M, at 8 nodes: after 57,000 tokens, and after five million.
USUALLY_ADDED, MOST_ADDED = 0.16, 0.46


@dataclass(frozen=True, slots=True)
class Payback:
    """head_s, pass_s: seconds of a head's step, and of a pass of four nodes."""

    head_s: float
    pass_s: float

    @property
    def share(self) -> float:
        """What a head's step takes, as a share of a pass."""
        return self.head_s / self.pass_s

    @property
    def needed(self) -> float:
        """Accepted tokens a pass that it has to add where it is asked in every step."""
        return self.share * TOKENS_A_PASS

    @property
    def can_pay(self) -> bool:
        return self.needed <= MOST_ADDED

    def sentence(self) -> str:
        """The figures, and what follows of them."""
        return (
            f"A step of the head takes {1e3 * self.head_s:.2f} ms, {self.share:.3f} of a pass of {_NODES} nodes: it "
            f"pays where it adds clearly more than {self.needed:.2f} accepted tokens a pass; heads were seen to add "
            f"{USUALLY_ADDED} after 57,000 tokens, and {MOST_ADDED} after five million."
        )


def measure_payback(target: Target, sizes: HeadSizes) -> Payback:
    """Time an untrained head of these sizes beside its target, in turn."""
    module = HeadModule(sizes, torch.zeros(sizes.hidden), torch.ones(sizes.hidden))
    head = open_head(rounded_head(module, np.arange(sizes.ids, dtype=np.int32)), target.manifest)
    past = min(_PAST, target.manifest.max_context - _NODES)
    cache = target.new_cache(1, past + _NODES)
    cache.fill(0, past)
    state, pending = np.zeros((1, sizes.hidden), np.float32), np.zeros(1, np.int64)
    wanted = Pass(0, [DraftTree.chain([0] * _NODES)], [range(_NODES)], wants_hidden_states=True)
    head_s, pass_s = [], []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        target.forward(cache, wanted)  # which takes the head's matrices out of the caches of the processor
        between = time.perf_counter()
        head.guess(state, pending)
        head_s.append(time.perf_counter() - between)
        pass_s.append(between - began)
    return Payback(statistics.median(head_s), statistics.median(pass_s))

"""Call every kernel once, which compiles it or loads what was compiled: a module that can be run."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.kernel_cache import mark_complete

if TYPE_CHECKING:
    from reader_edge_runtime.drafting.core import DraftingCore

_TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5]


def warm_up(after_step: Callable[[], None] = lambda: None) -> None:
    """Draft, learn, outgrow every array and forget, with the types that requests use.

    after_step: called in between, since loading a kernel leaves memory behind.
    """
    from reader_edge_runtime.drafting.core import DraftingCore
    from reader_edge_runtime.drafting.parameters import cold_parameters

    core = DraftingCore(DraftConfig(max_history_tokens=40), cold_parameters())
    for _ in range(3):
        request = core.begin([*_TEXT, *range(1000)])
        after_step()
        _learn_successors(core)
        after_step()
        request.draft(8, 4)
        request.observe(_TEXT)
        request.finish()
        after_step()
    mark_complete()


def _learn_successors(core: "DraftingCore") -> None:
    top_ids = np.arange(8, dtype=np.int64).reshape(2, 4)
    top_logits = np.zeros((2, 4), np.float32)
    tree = DraftTree.chain([1, 2000, 3])
    core.successors.learn(ScoredTree(tree, range(1, 3), 2, top_ids, top_logits, vocab_size=8), [1, 2])


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(19)
    warm_up()

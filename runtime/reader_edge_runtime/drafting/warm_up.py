"""Call every kernel once, which compiles it or loads what was compiled: a module that can be run."""

import os

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.drafting.kernel_cache import mark_complete

_TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5]


def warm_up() -> None:
    """Draft, learn, outgrow every array and forget, with the types that requests use."""
    from reader_edge_runtime.drafting.core import DraftingCore
    from reader_edge_runtime.drafting.parameters import cold_parameters

    core = DraftingCore(DraftConfig(max_history_tokens=40), cold_parameters())
    for _ in range(3):
        request = core.begin([*_TEXT, *range(1000)])
        request.follow([])
        request.draft(8, 4)
        request.observe(_TEXT)
        request.finish()
    mark_complete()


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(19)
    warm_up()

"""What sources that read states of the target bring to recorded answers, which are drafted afresh."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from reader_edge.bench.recording import RecordedRequest
from reader_edge.bench.replay.heard_answer import ReplayedAnswer
from reader_edge.bench.replay.simulator import Simulator
from reader_edge_runtime import GenerationStats
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter


def replayed(
    drafter: RetrievalDrafter, request: RecordedRequest, states: Float32Array, num_nodes: int
) -> GenerationStats:
    """Of a drafter that knows nothing but what ships."""
    drafter.forget()
    simulator = Simulator(
        partial(ReplayedAnswer, drafter, states=states), lambda answer, num_left: answer.draft(num_nodes + 1)
    )
    simulator.decode(request)
    return simulator.stats


def passes_saved(without: Sequence[GenerationStats], with_head: Sequence[GenerationStats]) -> str:
    """Share of passes that a head saves, with its standard error by the jackknife over answers, in per cent."""
    before, after = (np.array([stats.num_steps for stats in each], float) for each in (without, with_head))
    shares = 1 - (after.sum() - after) / (before.sum() - before)
    error = shares.std() * (len(shares) - 1) ** 0.5
    return f"{100 * (1 - after.sum() / before.sum()):.1f} ± {100 * error:.1f}"

"""Modelled decoding: acceptance on recordings over measured pass times, since no model chooses these tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from reader_edge.bench.recording import RecordedRequest
from reader_edge.bench.simulator import MAX_DEPTH, ReplayedRequest, Simulator
from reader_edge_runtime import DraftConfig, GenerationStats
from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.parameters import cold_parameters


@dataclass(frozen=True, slots=True)
class Modelled:
    """Modelled decoding of one recording: tokens a pass, seconds a token, and plain seconds over drafted ones."""

    acceptance_length: float
    token_s: float
    speed_up: float


def modelled(replay: GenerationStats, pass_seconds: Mapping[int, float], drafting_s: float = 0.0) -> Modelled:
    """Seconds of a replay's passes on a runtime. drafting_s: what drafting itself took, in all.

    Widths between measured ones are interpolated; wider ones than measured would be guesses and are an error.
    """
    widths = sorted(pass_seconds)
    if max(replay.steps_by_width) > widths[-1]:
        raise ValueError(f"A pass of {max(replay.steps_by_width)} tokens was not measured, {widths[-1]} at most.")
    times = [pass_seconds[width] for width in widths]
    passes_s = sum(n * float(np.interp(w, widths, times)) for w, n in replay.steps_by_width.items())
    token_s = (passes_s + drafting_s) / replay.num_decoded_tokens
    return Modelled(replay.acceptance_length, token_s, pass_seconds[1] / token_s)


def replay_reader_edge(requests: Sequence[RecordedRequest], pass_seconds: Mapping[int, float]) -> GenerationStats:
    """reader-edge's drafter on recorded answers, trees cut where a pass pays best. Its seconds are drafting's own.

    The drafter starts cold: its shipped priors have seen the recordings. The target's own successors, which it also
    drafts from, are not recorded and left out, and so is the guard that lets drafting rest.
    """
    widths = sorted(pass_seconds)
    times = np.interp(np.arange(1, widths[-1] + 1), widths, [pass_seconds[width] for width in widths])
    core = DraftingCore(DraftConfig(max_nodes=widths[-1], max_depth=MAX_DEPTH), cold_parameters())

    def draft(request: ReplayedRequest, num_left: int) -> DraftTree:
        tree = request.draft(widths[-1], min(MAX_DEPTH, max(1, num_left)))
        return tree.pruned(best_width(tree.values, times))

    simulator = Simulator(partial(ReplayedRequest, core), draft)
    for request in requests:
        simulator.decode(request)
    return simulator.stats


def best_width(values: Sequence[float], times: Float64Array) -> int:
    """Nodes of a tree that a pass pays best for: each adds its value to the tokens expected of it.

    values: of its nodes, the root's among them. times: float64 (W,), seconds of a pass over 1, 2, ... nodes.
    """
    expected = np.cumsum(np.sort(values)[::-1])[: len(times)]
    return int(np.argmax(expected / times[: len(expected)])) + 1

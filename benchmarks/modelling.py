"""Modelled decoding: acceptance on recordings over measured pass times. No model says these tokens, hence the name."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.prompt_lookup import Replay
from reader_edge.bench.replay import MAX_DEPTH, RecordedRequest
from reader_edge_runtime import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.core import DraftingCore, RequestCore
from reader_edge_runtime.drafting.parameters import cold_parameters


@dataclass(frozen=True, slots=True)
class Modelled:
    """Modelled decoding of one recording: tokens a pass, seconds a token, and plain seconds over drafted ones."""

    acceptance_length: float
    token_s: float
    speed_up: float


def modelled(replay: Replay, pass_seconds: Mapping[int, float], drafting_s: float = 0.0) -> Modelled:
    """Seconds of a replay's passes on a runtime. drafting_s: what drafting itself took, in all.

    Widths between measured ones are interpolated; wider ones than measured would be guesses and are an error.
    """
    widths = sorted(pass_seconds)
    if max(replay.passes_by_width) > widths[-1]:
        raise ValueError(f"A pass of {max(replay.passes_by_width)} tokens was not measured, {widths[-1]} at most.")
    times = [pass_seconds[width] for width in widths]
    passes_s = sum(n * float(np.interp(w, widths, times)) for w, n in replay.passes_by_width.items())
    token_s = (passes_s + drafting_s) / replay.num_tokens
    return Modelled(replay.acceptance_length, token_s, pass_seconds[1] / token_s)


def replay_reader_edge(requests: Sequence[RecordedRequest], pass_seconds: Mapping[int, float]) -> tuple[Replay, float]:
    """reader-edge's drafter on recorded answers, trees cut where a pass pays best, and the seconds drafting took.

    The drafter starts cold: its shipped priors have seen the recordings. The target's own successors, which it also
    drafts from, are not recorded and left out, and so is the guard that lets drafting rest.
    """
    widths = sorted(pass_seconds)
    times = np.interp(np.arange(1, widths[-1] + 1), widths, [pass_seconds[width] for width in widths])
    core = DraftingCore(DraftConfig(max_nodes=widths[-1], max_depth=MAX_DEPTH), cold_parameters())
    result = Replay()
    drafting_s = 0.0
    for request in requests:
        state: RequestCore | None = None
        for prompt, output in request.turns:
            start = time.perf_counter()
            if state is None:
                state = core.begin(prompt)
            else:
                state.extend(prompt)
            position = 0
            while position < len(output):
                tree = state.draft(widths[-1], min(MAX_DEPTH, max(1, len(output) - position - 1)))
                tree = tree.best(_best_width(tree.values, times))
                emitted = output[position : position + _num_accepted(tree, output[position:-1]) + 1]
                state.observe(emitted)
                position += len(emitted)
                result.passes_by_width[len(tree)] += 1
            state.finish()
            drafting_s += time.perf_counter() - start
            result.num_tokens += len(output)
    return result, drafting_s


def _best_width(values: Sequence[float], times: npt.NDArray[np.float64]) -> int:
    """Nodes of a tree that a pass pays best for: each adds its value to the tokens expected of it."""
    expected = np.cumsum(np.sort(values)[::-1])
    return int(np.argmax(expected / times[: len(values)])) + 1


def _num_accepted(tree: DraftTree, token_ids: Sequence[int]) -> int:
    node = 0
    for depth, token_id in enumerate(token_ids):
        node = tree.child(node, token_id)
        if node < 0:
            return depth
    return len(token_ids)

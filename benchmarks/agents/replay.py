"""Replays recorded sessions over measured pass times: what plain, drafted and perfectly drafted decoding would take."""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.agents.session_script import make_project
from benchmarks.agents.sessions import Turn
from benchmarks.passes.modelling import best_width
from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.workspace.index import TextIndex
from reader_edge_runtime.drafting.sources.workspace.source import WorkspaceSource
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.text.tokenizer import Tokenizer

_MAX_DEPTH = 32


class Replayed(NamedTuple):
    """A turn, or several: tokens of context and answer, steps, and seconds.

    perfect_s: of a drafter that is always right, with trees as wide as pays best.
    """

    kind: str
    context: int
    num_tokens: int
    num_steps: int
    plain_s: float
    drafted_s: float
    perfect_s: float

    @classmethod
    def total(cls, several: Sequence["Replayed"]) -> "Replayed":
        """context: the longest."""
        sums = [sum(values) for values in list(zip(*several, strict=True))[2:]]
        return cls(several[0].kind, max(each.context for each in several), *sums)


def workspace_index(tokenizer: Tokenizer) -> TextIndex:
    """The project before the session, each file as it is and as JSON has it."""
    with tempfile.TemporaryDirectory() as folder:
        make_project(Path(folder))
        texts = [path.read_text("utf-8") for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    quoted = [json.dumps(text, ensure_ascii=False)[1:-1] for text in texts]
    return TextIndex([np.array(token_ids, np.int32) for token_ids in tokenizer.encode_batch([*texts, *quoted])])


def replay(turns: Sequence[Turn], cost: PassCost, index: TextIndex | None) -> Iterator[Replayed]:
    """Each turn in its order; the drafter keeps what it learned of those before. index: of a workspace.

    Trees are as wide as a pass pays best behind so many tokens; drafting's own processor time is counted.
    """
    sources = [] if index is None else [WorkspaceSource()]
    for source in sources:
        source.index = index or source.index
    drafter = RetrievalDrafter(DraftConfig(), sources).wait()
    for turn in turns:
        times = cost.pass_seconds(len(turn.prompt) + len(turn.answer) / 2)[1:]
        widths = np.arange(1, len(times) + 1)
        num_tokens = len(turn.answer)
        num_steps, drafted_s = _drafted(drafter, turn, times)
        perfect_s = num_tokens * float((times / widths).min())
        plain_s = num_tokens * float(times[0])
        yield Replayed(turn.kind, len(turn.prompt), num_tokens, num_steps, plain_s, drafted_s, perfect_s)


def _drafted(drafter: RetrievalDrafter, turn: Turn, times: Float64Array) -> tuple[int, float]:
    """Steps and seconds of a drafted answer."""
    token_ids, num_steps, seconds = list(turn.prompt), 0, 0.0
    request = drafter.begin(RequestContext(token_ids))
    drafter.draft([DraftRequest(request, len(times), _MAX_DEPTH)])  # it learns the prompt while that is read
    end = len(turn.prompt) + len(turn.answer)
    while len(token_ids) < end:
        left = turn.answer[len(token_ids) - len(turn.prompt) :]
        began = time.thread_time()
        [tree] = drafter.draft([DraftRequest(request, len(times), _MAX_DEPTH)])
        if not isinstance(tree, DraftTree):
            raise tree
        tree = tree.pruned(best_width(tree.values, times))
        seconds += time.thread_time() - began + float(times[len(tree) - 1])
        node, num_accepted = 0, 0
        while num_accepted < len(left) - 1 and (node := tree.child(node, left[num_accepted])) >= 0:
            num_accepted += 1
        token_ids += left[: num_accepted + 1]
        request.observe(None)
        num_steps += 1
    request.finish()
    return num_steps, seconds

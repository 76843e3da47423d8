"""A second pass is waited for where a walk goes on into it, and how long that took is known."""

import time
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from reader_edge_runtime.decoding.scorer import ScoredTrees
from reader_edge_runtime.decoding.verification import Verification
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.target import PassBehind

WHOLE = DraftTree.chain([3, 4, 5])
SAID = ForwardResult(np.zeros((1, 1, 2), np.int64), np.zeros((1, 1, 2), np.float32))


@pytest.mark.parametrize(("token_id", "entry", "waited_s"), [(4, 1, 0.25), (9, -1, 0.0)], ids=["entered", "not"])
def test_only_a_second_pass_that_is_entered_is_waited_for(
    token_id: int, entry: int, waited_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]

    def result() -> ForwardResult:
        now_s[0] += 0.25
        return SAID

    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    behind = cast(PassBehind, SimpleNamespace(result=result, drop=lambda: None))
    scored = ScoredTrees([WHOLE.of_nodes([0])], SAID, WHOLE, behind)
    now_s[0] += 1.0  # in which the first pass's tokens are chosen
    assert scored.enter(Verification([0], [token_id])) == entry
    assert scored.waited_s == waited_s
    scored.close()

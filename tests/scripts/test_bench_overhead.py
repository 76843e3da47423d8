"""The walk without a rule, beside which the acceptance seam is timed."""

import runpy
from types import SimpleNamespace
from typing import cast

import pytest

from reader_edge_runtime.acceptance import EXACT, Choices
from reader_edge_runtime.decoding.verification import walk
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.forward_result import ForwardResult
from tests.conftest import ROOT

bare_walk = runpy.run_path(str(ROOT / "scripts" / "bench_overhead"))["bare_walk"]


@pytest.mark.parametrize("last", [99, 5])
def test_it_walks_as_the_exact_rule_does(last: int) -> None:
    """last: a token that ends the answer."""
    tree = DraftTree.root(4)
    for parent, token_id in ((0, 5), (0, 6), (1, 7), (3, 8)):
        tree.add(token_id, parent, "context")

    def peek(node: int) -> int:
        return [5, 7, 0, 1, 0][node]

    def take(node: int, token_id: int) -> bool:
        return token_id == last

    choices = Choices(tree, cast(ForwardResult, SimpleNamespace()), 0, peek, lambda token_id: True)
    found = bare_walk(tree, peek, take)
    assert found == walk(EXACT, choices, take)
    assert found.token_ids == ([5] if last == 5 else [5, 7, 1])

"""Drafts of tool calls: paths become a tree, past calls are bounded, and requests without tools go on without them."""

from collections.abc import Mapping, Sequence

import pytest

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.draft_hints import DraftHints
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.tool_source import ToolSource, merged, recalled
from reader_edge_runtime.text.tool_calls.call_predictor import CallPredictor

Calls = Mapping[str, Mapping[str, Sequence[str]]]
CALL = ("weather", {"city": '"Rome"'})


class PlantedPredictor(CallPredictor):
    """Knows one path, and tells of one call. requests: answers, and past calls."""

    calls: list[tuple[str, Mapping[str, str]]] = []  # type: ignore[assignment]  # noqa: RUF012

    def __init__(self, *calls: tuple[str, Mapping[str, str]]) -> None:
        self.calls = list(calls) or [CALL]
        self.requests: list[tuple[list[int], Calls]] = []

    def paths(self, answer: Sequence[int], past: Calls) -> list[tuple[list[int], float]]:
        self.requests.append((list(answer), past))
        return [([30, 31, 32], 0.9)]


def predicted(text: list[int], predictor: CallPredictor) -> RequestContext:
    return RequestContext(text, DraftHints(predictor=predictor))


def drafted(drafter: RetrievalDrafter, *draft_requests: DraftRequest) -> list[DraftTree]:
    trees = drafter.draft(draft_requests)
    assert all(isinstance(tree, DraftTree) for tree in trees)
    return [tree for tree in trees if isinstance(tree, DraftTree)]


def test_paths_become_a_tree_whose_nodes_are_as_sure_as_the_paths_through_them() -> None:
    tree = merged(9, [([1, 2, 3], 0.6), ([1, 4], 0.2), ([5], 0.1)])
    assert (tree.token_ids, tree.parents) == ([9, 1, 2, 3, 4, 5], [-1, 0, 1, 2, 1, 0])
    assert tree.values == pytest.approx([1.0, 0.8, 0.6, 0.6, 0.2, 0.1])
    assert merged(9, []).token_ids == [9]
    assert merged(9, [([1], 0.9), ([1, 2], 0.9)]).values == pytest.approx([1.0, 1.0, 0.5])


def test_a_guide_is_drafted_from_and_named() -> None:
    drafter = RetrievalDrafter(DraftConfig(max_nodes=8)).wait()
    predictor = PlantedPredictor()
    text = [5]
    request = drafter.begin(predicted(text, predictor))
    [tree] = drafted(drafter, DraftRequest(request, 8, 4))
    assert tree.token_ids[:4] == [5, 30, 31, 32]
    assert tree.sources[:4] == ["", "tools", "tools", "tools"]
    text.append(30)
    request.observe(None)
    drafted(drafter, DraftRequest(request, 8, 4))
    assert [answer for answer, _ in predictor.requests] == [[], [30]]


def test_a_request_without_tools_is_drafted_as_if_there_were_none() -> None:
    config = DraftConfig(max_nodes=8)
    alone, beside = (RetrievalDrafter(config).wait() for _ in range(2))
    text = [5, 6, 7, 8, 5, 6]
    other = beside.begin(predicted([1, 2], PlantedPredictor()))
    expected = drafted(alone, DraftRequest(alone.begin(RequestContext(text)), 8, 4))
    trees = drafted(beside, DraftRequest(other, 8, 4), DraftRequest(beside.begin(RequestContext(text)), 8, 4))
    assert trees[1:] == expected
    assert "tools" not in expected[0].sources


def test_past_calls_of_a_tool_reach_later_requests_until_they_are_forgotten() -> None:
    drafter = RetrievalDrafter(DraftConfig()).wait()
    past = []
    for city in ("Rome", "Riga", "Rome"):
        predictor = PlantedPredictor(("weather", {"city": f'"{city}"'}))
        text = [1, 2]
        request = drafter.begin(predicted(text, predictor))
        drafted(drafter, DraftRequest(request, 4, 4))
        text.append(3)
        request.finish()
        past.append(predictor.requests[0][1])
    assert past[1:] == [{"weather": {"city": ['"Riga"', '"Rome"']}}, {"weather": {"city": ['"Rome"', '"Riga"']}}]
    kept = drafter.state()
    drafter.forget()
    assert "tools/calls" not in drafter.state()
    drafter.restore(kept, 100)
    assert drafter.state()["tools/calls"].tobytes() == kept["tools/calls"].tobytes()


def test_nothing_is_kept_where_no_history_is() -> None:
    source = ToolSource(is_learning=False)
    source.learn([("weather", {"city": '"Rome"'})])
    assert source.pasts == {}
    assert source.state() == {}


def test_past_calls_are_bounded_the_last_ones_stay() -> None:
    calls = [(f"tool{i % 300}", {f"argument{i % 7}": str(i)}) for i in range(5000)]
    past = recalled({}, calls)
    assert len(past) == 256
    assert list(past)[-1] == "tool199"
    assert max(len(texts) for values in past.values() for texts in values.values()) <= 8
    assert past["tool199"]["argument1"][0] == "4999"
    many = recalled({}, [("a", {f"argument{i}": "1"}) for i in range(100)])
    assert len(many["a"]) == 64

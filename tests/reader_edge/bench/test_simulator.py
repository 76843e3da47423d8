"""The simulator: recorded answers decoded as a target that chooses them would."""

from collections.abc import Sequence

from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge.bench.simulator import ReplayedRequest, Simulator
from reader_edge_runtime.draft_tree import DraftTree


class Notebook(ReplayedRequest):
    """A drafter's request that lists its calls."""

    def __init__(self, turn: RecordedTurn) -> None:
        self.calls: list[tuple[str, list[int]]] = [("begin", turn.prompt)]

    def extend(self, turn: RecordedTurn) -> None:
        self.calls.append(("extend", turn.prompt))

    def observe(self, token_ids: Sequence[int]) -> None:
        self.calls.append(("observe", list(token_ids)))

    def finish(self) -> None:
        self.calls.append(("finish", []))


def fork(request: ReplayedRequest, num_left: int) -> DraftTree:
    """Always drafts 5 6 7, and 8 beside the 6."""
    tree = DraftTree.chain([0, 5, 6, 7])
    tree.add(8, 1, "")
    return tree


REQUEST = RecordedRequest("task", [RecordedTurn([1, 2], [5, 8, 4, 9]), RecordedTurn([3], [6, 5])])


def test_a_draft_is_accepted_as_far_as_the_recording_has_it_and_one_token_more() -> None:
    simulator = Simulator(Notebook, fork)
    simulator.decode(REQUEST)
    assert isinstance(simulator.request, Notebook)
    assert simulator.request.calls == [
        ("begin", [1, 2]),
        ("observe", [5, 8, 4]),  # two nodes, one of them not on the first branch, and the target's own token
        ("observe", [9]),
        ("finish", []),
        ("extend", [3]),
        ("observe", [6]),
        ("observe", [5]),  # drafted, but the last token of an answer is the target's own
        ("finish", []),
    ]
    stats = simulator.stats_by_task["task"]
    assert (stats.num_steps, stats.num_accepted_tokens, stats.num_drafted_tokens) == (4, 2, 16)
    assert stats.steps_by_width == {5: 4}
    assert (len(simulator.draft_us), len(simulator.learn_us), len(simulator.prompt_us)) == (4, 6, 2)


def test_the_drafter_gets_how_much_of_the_answer_a_draft_may_hold() -> None:
    limits = []

    def draft(request: ReplayedRequest, num_left: int) -> DraftTree:
        limits.append(num_left)
        return DraftTree.chain([0])

    Simulator(Notebook, draft).decode(REQUEST)
    assert limits == [3, 2, 1, 0, 1, 0]

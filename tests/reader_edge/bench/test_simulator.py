"""The simulator: recorded answers decoded as a target that says them would."""

from collections.abc import Sequence

from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge.bench.replay.simulator import Simulator
from reader_edge_runtime.draft_tree import DraftTree


class Notebook:
    """A drafter's request that writes down what it is told."""

    def __init__(self, turn: RecordedTurn) -> None:
        self.told: list[tuple[str, list[int]]] = [("begin", turn.prompt)]

    def extend(self, turn: RecordedTurn) -> None:
        self.told.append(("extend", turn.prompt))

    def observe(self, token_ids: Sequence[int]) -> None:
        self.told.append(("observe", list(token_ids)))

    def finish(self) -> None:
        self.told.append(("finish", []))


def fork(request: Notebook, num_left: int) -> DraftTree:
    """Always drafts 5 6 7, and 8 beside the 6."""
    tree = DraftTree.chain([0, 5, 6, 7])
    tree.add(8, 1, "")
    return tree


REQUEST = RecordedRequest("task", [RecordedTurn([1, 2], [5, 8, 4, 9]), RecordedTurn([3], [6, 5])])


def test_a_draft_is_accepted_as_far_as_the_recording_says_it_and_one_token_more() -> None:
    simulator = Simulator(Notebook, fork)
    simulator.decode(REQUEST)
    assert simulator.request is not None
    assert simulator.request.told == [
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


def test_the_drafter_is_told_how_much_of_the_answer_a_draft_may_foretell() -> None:
    told = []

    def draft(request: Notebook, num_left: int) -> DraftTree:
        told.append(num_left)
        return DraftTree.chain([0])

    Simulator(Notebook, draft).decode(REQUEST)
    assert told == [3, 2, 1, 0, 1, 0]


def test_an_answer_is_shown_with_its_context_before_it_is_learned() -> None:
    simulator = Simulator(Notebook, fork)
    seen = []
    for context, output in simulator.answers(REQUEST):
        seen.append((list(context), output, sum(simulator.stats.steps_by_width.values())))
    assert seen == [([1, 2], [5, 8, 4, 9], 0), ([1, 2, 5, 8, 4, 9, 3], [6, 5], 2)]

"""Expected rejections against all that a toy chain can say, each answer as often as the chain says it."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np
import pytest

from reader_edge.bench.frontier.rejections import Rejections, said_by_target
from reader_edge.bench.recording import RecordedRequest, RecordedTurn, Successors
from reader_edge.bench.replay.simulator import Simulator
from reader_edge_runtime.draft_tree import DraftTree

# Probabilities are sums of powers of two, so that every product and sum of floats is exact.
CHAIN = {0: {0: 0.5, 1: 0.25, 2: 0.25}, 1: {0: 0.125, 1: 0.125, 2: 0.75}, 2: {0: 0.0, 1: 1.0, 2: 0.0}}
NUM_TOKENS = 6
ANSWERS = list(itertools.product(CHAIN, repeat=NUM_TOKENS))

Drafter = Callable[[int], DraftTree]


class ToyRequest:
    """Drafts by its last token alone, and counts rejections of all tokens but the answer's last."""

    def __init__(self, drafter: Drafter, rejections: Rejections, turn: RecordedTurn) -> None:
        self.drafter, self.rejections, self.text, self.num_left = drafter, rejections, turn.prompt[:], NUM_TOKENS

    def draft(self, num_left: int) -> DraftTree:
        self.tree = self.drafter(self.text[-1])
        return self.tree

    def extend(self, turn: RecordedTurn) -> None:
        raise AssertionError

    def observe(self, token_ids: Sequence[int]) -> None:
        judged = token_ids[: self.num_left - 1]
        before = [self.text[-1], *judged][: len(judged)]
        self.rejections.add(self.tree, judged, [CHAIN[token_id] for token_id in before])
        self.text += token_ids
        self.num_left -= len(token_ids)

    def finish(self) -> None:
        return None


def likely_chain(token_id: int) -> DraftTree:
    """As long as any answer, so that it never comes to its end."""
    token_ids = [token_id]
    for _ in range(NUM_TOKENS):
        token_ids.append(max(CHAIN[token_ids[-1]], key=CHAIN[token_ids[-1]].__getitem__))
    return DraftTree.chain(token_ids)


def forked(token_id: int) -> DraftTree:
    """Two successors, one of them with another below it."""
    tree = DraftTree.chain([token_id, (token_id + 1) % 3, 1])
    tree.add(token_id, 0, "")
    return tree


def probability(answer: Sequence[int]) -> float:
    """With which the chain says it behind a 0."""
    return prod(CHAIN[before][token_id] for before, token_id in itertools.pairwise([0, *answer]))


@pytest.mark.parametrize("drafter", [likely_chain, forked, lambda token_id: DraftTree.root(token_id)])
def test_expected_rejections_are_the_mean_of_those_in_all_answers_there_are(drafter: Drafter) -> None:
    passes = counted = expected = 0.0
    for answer in ANSWERS:
        rejections, weight = Rejections(), probability(answer)
        simulator = Simulator(partial(ToyRequest, drafter, rejections), ToyRequest.draft)
        simulator.decode(RecordedRequest("", [RecordedTurn([0], list(answer))]))
        assert rejections.num_tokens == NUM_TOKENS - 1
        passes += weight * simulator.stats.num_steps
        counted += weight * rejections.counted
        expected += weight * rejections.expected
    assert expected == counted == passes - 1  # every rejection ends a pass, and so does the last token


def test_of_drafts_without_end_they_are_the_theorems_sum_of_total_variations() -> None:
    expected = 0.0
    for answer in ANSWERS:
        rejections = Rejections()
        simulator = Simulator(partial(ToyRequest, likely_chain, rejections), ToyRequest.draft)
        simulator.decode(RecordedRequest("", [RecordedTurn([0], list(answer))]))
        expected += probability(answer) * rejections.expected
    theorem = 0.0
    for length in range(NUM_TOKENS - 1):
        for prefix in itertools.product(CHAIN, repeat=length):
            said = CHAIN[[0, *prefix][-1]]
            drafted = max(said, key=said.__getitem__)
            variation = sum(abs(p - (token_id == drafted)) for token_id, p in said.items()) / 2
            theorem += probability(prefix) * variation
    assert expected == theorem > 0


def test_the_target_says_what_was_recorded_or_what_it_thought_likely_at_a_temperature() -> None:
    logits = np.array([[2.0, 0.0], [np.inf, 0.0]], np.float32)
    successors = Successors(np.array([0, 1]), np.array([[7, 8], [7, 8]]), logits)
    turn = RecordedTurn([3], [8, 9, 9], successors)
    assert said_by_target(turn, 0, 0.0) == {8: 1.0}
    assert said_by_target(turn, 0, 2.0) == pytest.approx({7: 1 / (1 + np.exp(-1)), 8: 1 / (1 + np.exp(1))})
    assert said_by_target(turn, 0, 1e-300) == {7: 1.0, 8: 0.0}
    assert said_by_target(turn, 1, 1.0) == {9: 1.0}  # an infinite logit tells nothing
    assert said_by_target(turn, 2, 1.0) == {9: 1.0}  # nothing was reported
    assert said_by_target(RecordedTurn([3], [8]), 0, 1.0) == {8: 1.0}

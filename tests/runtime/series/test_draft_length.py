"""As many patches are drafted as bring most patches a second; none where drafts bring nothing."""

import pytest

from reader_edge_runtime.series.draft_length import DraftLength


def _after(seconds: dict[int, float], depth: int, num_steps: int = 60) -> list[int]:
    """Lengths that were chosen: drafts beyond `depth` are never accepted, and a step takes so long."""
    length, chosen = DraftLength(3), []
    for _ in range(num_steps):
        chosen.append(length.choose(3))
        length.settle(chosen[-1], [min(chosen[-1], depth)] * 2, seconds[chosen[-1]])
    return chosen


@pytest.mark.parametrize(("depth", "best"), [(3, 3), (2, 2), (1, 1), (0, 0)])
def test_what_brings_most_is_chosen(depth: int, best: int) -> None:
    chosen = _after({0: 1.0, 1: 1.1, 2: 1.2, 3: 1.3}, depth)
    assert set(chosen[:8]) == {0, 1, 2, 3}
    assert chosen[-20:] == [best] * 20


def test_dear_drafts_are_left_alone_though_they_are_right() -> None:
    assert _after({0: 1.0, 1: 2.5, 2: 4.0, 3: 5.0}, 3)[-20:] == [0] * 20


def test_no_more_are_drafted_than_there_are_patches_to_come() -> None:
    assert DraftLength(3).choose(1) <= 1
    assert DraftLength(0).choose(5) == 0


def test_an_interrupted_step_does_not_decide() -> None:
    length = DraftLength(1)
    for chosen in (0, 1) * 5:
        length.settle(chosen, [chosen], 1.0 + 0.1 * chosen)
    length.settle(1, [1], 600.0)
    assert length.choose(1) == 1

"""Steps of one or two passes beside ordinary ones that made the same texts."""

from benchmarks.pipeline.second_pass import Step, row_of


def test_a_gain_is_of_time_and_shares_are_of_steps_with_a_second_pass() -> None:
    ordinary = [Step(4, 0, False, 0.05, 2), Step(6, 0, False, 0.05, 2), Step(8, 0, False, 0.05, 2)]
    either = [Step(2, 8, True, 0.06, 5), Step(4, 0, False, 0.04, 1)]
    row = row_of(2, 20, "anywhere", ordinary, either)
    assert (row.tokens, row.nodes, row.either_tokens, row.first, row.second) == (2, 6, 3, 3, 8)
    assert (row.sent, row.used, round(row.gain, 6)) == (0.5, 1.0, 0.5)


def test_steps_without_second_passes_have_none_that_were_used() -> None:
    row = row_of(2, 20, "leaf", [Step(4, 0, False, 0.05, 2)], [Step(4, 0, False, 0.05, 2)])
    assert (row.second, row.sent, row.used, row.gain) == (0, 0, 0, 0)

"""Modelled drafting: prompt lookup on recorded answers, and pass times made into speed-ups."""

from collections import Counter

import pytest

from benchmarks.modelling import modelled, replay_reader_edge
from benchmarks.pass_replay import compared, curves_of
from benchmarks.prompt_lookup import Index, replay_lookup
from benchmarks.runtimes import Lookup
from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge_runtime import GenerationStats

LOOKUP = Lookup(max_ngram=2, min_ngram=1, num_tokens=3, takes_last=False)


def passes(by_width: dict[int, int], num_tokens: int) -> GenerationStats:
    num_steps = sum(by_width.values())
    return GenerationStats(
        num_steps=num_steps, num_accepted_tokens=num_tokens - num_steps, steps_by_width=Counter(by_width)
    )


def test_lookup_proposes_what_followed_the_longest_known_end() -> None:
    index = Index(LOOKUP)
    index.observe([1, 2, 3, 4, 9, 2, 7, 1, 2])
    assert index.draft() == [3, 4, 9]  # behind 1 2, not the later 2


def test_lookup_takes_the_first_or_the_last_occurrence() -> None:
    text = [1, 2, 5, 1, 2, 6, 1, 2]
    first, last = Index(LOOKUP), Index(Lookup(max_ngram=2, min_ngram=2, num_tokens=1, takes_last=True))
    first.observe(text)
    last.observe(text)
    assert first.draft() == [5, 1, 2]
    assert last.draft() == [6]


def test_an_end_that_occurred_nowhere_else_drafts_nothing() -> None:
    index = Index(LOOKUP)
    index.observe([1, 2, 3])
    assert index.draft() == []


def test_replayed_passes_emit_what_they_accept_and_one_token_more() -> None:
    request = RecordedRequest("copy", [RecordedTurn([1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 9])])
    replay = replay_lookup([request], LOOKUP)
    # 6 is new: a plain pass emits 2; 3 4 5 are drafted behind it and accepted, and the pass adds 9.
    assert replay.steps_by_width == Counter({1: 1, 4: 1})
    assert replay.num_decoded_tokens == 5
    assert replay.acceptance_length == 2.5


def test_a_rejected_draft_still_costs_its_width() -> None:
    request = RecordedRequest("other", [RecordedTurn([1, 2, 3, 4, 1], [8, 7])])
    assert replay_lookup([request], LOOKUP).steps_by_width == Counter({2: 1, 1: 1})


def test_modelled_time_weighs_passes_by_their_width() -> None:
    replay = passes({1: 2, 3: 1}, num_tokens=5)
    result = modelled(replay, {1: 1.0, 2: 1.5, 4: 2.5})  # a pass of 3 lies between those of 2 and 4
    assert result.token_s == pytest.approx((2 * 1.0 + 2.0) / 5)
    assert result.speed_up == pytest.approx(1.0 / 0.8)
    assert result.acceptance_length == pytest.approx(5 / 3)


def test_time_spent_drafting_counts() -> None:
    replay = passes({1: 4}, num_tokens=4)
    assert modelled(replay, {1: 1.0}, drafting_s=4.0).speed_up == pytest.approx(0.5)


def test_widths_beyond_the_measured_ones_are_no_guess() -> None:
    with pytest.raises(ValueError, match="pass of 9 tokens was not measured, 8 at most"):
        modelled(passes({9: 1}, num_tokens=9), {1: 1.0, 8: 2.0})


def test_reader_edge_drafts_wide_only_where_width_is_cheap() -> None:
    text = list(range(10, 60))
    request = RecordedRequest("copy", [RecordedTurn(text + text, [*text, 5])])
    cheap = replay_reader_edge([request], {1: 1.0, 16: 1.0})
    dear = replay_reader_edge([request], {1: 1.0, 16: 100.0})
    assert cheap.num_decoded_tokens == dear.num_decoded_tokens == 51
    assert cheap.acceptance_length > 4
    assert max(dear.steps_by_width) == 1
    assert min(dear.prefill_s, dear.draft_s, dear.learn_s) > 0


def test_contenders_are_compared_over_the_passes_of_one_past() -> None:
    results = {
        "passes-0.5b": {
            "figures": {
                "slow": {
                    "pasts": {"64": {"pass_s": {"1": [9.0]}}, "512": {"pass_s": {"1": [2.0, 4.0, 3.0], "2": [3.0]}}}
                },
                "fast": {"pasts": {"64": {"pass_s": {}}, "512": {"pass_s": {"1": [1.5], "2": [1.5]}}}},
                "failed": {"pasts": {"64": {"pass_s": {}}}},
            }
        }
    }
    curves = curves_of(results, "passes-0.5b", 512)
    assert curves == {"slow": {1: 3.0, 2: 3.0}, "fast": {1: 1.5, 2: 1.5}}
    assert curves_of(results, "passes-0.5b", 64) == {"slow": {1: 9.0}}
    request = RecordedRequest("copy", [RecordedTurn(list(range(10, 30)), list(range(10, 30)))])
    rows = compared({"copies": [request]}, curves)
    assert rows[0] == "| drafted tokens/s | slow | fast |"
    assert all("(2.00)" in row for row in rows[-2:])
    assert [row.split(" | ")[0] for row in rows[-2:]] == ["| copies", "| mean"]

"""A comparison is fair: both ways start from nothing, in alternating order."""

import pytest

from reader_edge.bench.comparison import ROUNDS, compare
from reader_edge_runtime import Engine, GenerationConfig

CONFIG = GenerationConfig(max_tokens=24, ignores_eos=True)


def test_both_ways_emit_the_same_tokens(engine: Engine) -> None:
    comparison = compare(engine, "# tar\n\n", CONFIG)
    assert comparison.is_identical
    assert len(comparison.plain.answers) == len(comparison.drafted.answers) == ROUNDS
    assert all(result.stats.num_drafted_tokens == 0 for result in comparison.plain.answers)


def test_an_answer_is_the_engine_s_own_and_its_times_hold_its_steps(engine: Engine) -> None:
    comparison = compare(engine, "# tar\n\n", CONFIG, num_rounds=1)
    engine.forget()
    result = engine.generate("# tar\n\n", CONFIG)
    for answer in (*comparison.plain.answers, *comparison.drafted.answers):
        assert (answer.text, answer.token_ids) == (result.text, result.token_ids)
        assert answer.finish_reason == result.finish_reason
        assert answer.first_token_s >= answer.stats.prefill_s > 0
        assert answer.decode_s >= answer.stats.decode_s > 0


def test_no_round_learns_from_another(engine: Engine) -> None:
    comparison = compare(engine, "1 2 3 1 2 3 1 2", CONFIG)
    for result in (*comparison.plain.answers, *comparison.drafted.answers):
        assert result.stats.num_reused_tokens == 0
        assert result.stats.drafted_by_source["history"] == 0


def test_the_order_alternates(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    stream = Engine.stream

    def watch(self: Engine, prompt: str, config: GenerationConfig) -> object:
        order.append(config.is_drafted)
        return stream(self, prompt, config)

    monkeypatch.setattr(Engine, "stream", watch)
    shown: list[tuple[int, int]] = []
    compare(engine, "# tar", CONFIG, on_progress=lambda done, total: shown.append((done, total)))
    assert order == [False, True, True, False, False, True]
    assert shown[-1] == (6, 6)


def test_a_single_token_leaves_nothing_to_speed_up(engine: Engine) -> None:
    assert compare(engine, "# tar", GenerationConfig(max_tokens=1)).speedup == 1

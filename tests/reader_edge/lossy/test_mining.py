"""Mining: each likely other token takes the choice's place once, and is kept where the final answer stays."""

from typing import Any

import pytest

from reader_edge.lossy.mining import mined
from reader_edge.lossy.tasks import Task
from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.lossy.judge_figures import MOST_NATS, JudgeFigures


def mined_of(engine: Engine, final: Any, stop: tuple[str, ...] = ("zzz",)) -> tuple[list[Any], list[Any]]:
    """What is found of one task, and how many tokens were said before each answer went on."""
    done: list[Any] = []
    task = Task("some kind", "# tar\n\n- Extract an archive", final, "", stop)
    figures = JudgeFigures(engine.package.manifest, engine.tokenizer)
    return mined(engine, [task], figures, lambda *progress: done.append(progress)), done


def test_tokens_that_change_nothing_are_kept_and_others_taken_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    generate = engine.generate

    def noted(prompt: Any, config: GenerationConfig) -> Any:
        begun.append(64 - config.max_tokens)
        return generate(prompt, config)

    monkeypatch.setattr(engine, "generate", noted)
    kept, done = mined_of(engine, lambda answer: "the same")
    assert done == [(1, 1)]
    assert len(kept) > 3
    assert not any(each.matters for each in kept)
    assert all(0 <= each.figures[0] <= MOST_NATS for each in kept)
    assert begun[0] == 0
    assert begun[1:] == sorted(set(begun[1:]))  # each behind the one before
    begun.clear()
    changed, _ = mined_of(engine, lambda answer: answer)
    assert all(each.matters for each in changed)
    assert begun[1:] == sorted(set(begun[1:]))


def test_an_answer_that_a_token_ends_is_gone_on_with_no_more(engine: Engine) -> None:
    found, _ = mined_of(engine, str.strip, stop=(" ", "a", "e", "i", "o"))
    assert all(each.question == 0 for each in found)

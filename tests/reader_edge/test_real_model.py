"""A real model, from the file that people have to an answer: sensible, and drafted as it is plainly."""

from pathlib import Path

import pytest

from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter


@pytest.fixture(scope="module")
def real_engine(real_package: Path) -> Engine:
    engine = Engine.load(real_package, EngineConfig(is_calibrated=False))  # else this machine's speed decides on drafts
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()
    return engine


def test_it_knows_the_days_of_a_week_and_ends_its_turn(real_engine: Engine) -> None:
    """In fp32 each token of this answer leads the next best by half a nat, so eight bits say the same."""
    answer = real_engine.generate([{"role": "user", "content": "How many days are in a week?"}])
    assert answer.text == "A week is approximately 7 days."
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize(
    "question", ["How many days are in a week?", "Write the numbers from one to twenty as words, one a line."]
)
def test_drafted_and_plain_answers_are_the_same(real_engine: Engine, question: str) -> None:
    messages = [{"role": "user", "content": question}]
    plain, drafted = (
        real_engine.generate(messages, GenerationConfig(max_tokens=80, is_drafted=is_drafted))
        for is_drafted in (False, True)
    )
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.num_accepted_tokens > 0

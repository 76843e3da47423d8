"""Guesses of an answer: a right one saves passes, a wrong one changes nothing, and a long one is bounded."""

from dataclasses import replace

import pytest

from reader_edge_runtime import Conversation, Engine, GenerationConfig, SamplingConfig
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftWish
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.guesses import guessed_answers
from reader_edge_runtime.text.conversation import CallForm, call_skeletons

CONFIG = GenerationConfig(max_tokens=80)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}}},
    },
}


def test_a_right_prediction_saves_passes_and_a_wrong_one_changes_nothing(engine: Engine) -> None:
    engine.forget()
    plain = engine.generate("# tar", replace(CONFIG, is_drafted=False))
    steps = {}
    predictions = {"none": "", "right": plain.text, "edited": plain.text.replace("e", "E", 2), "wrong": "lorem " * 99}
    for name, text in predictions.items():
        engine.forget()
        result = engine.generate("# tar", replace(CONFIG, prediction=text))
        assert result.token_ids == plain.token_ids
        steps[name] = result.stats.num_steps
    assert steps["right"] < steps["none"] / 2
    assert steps["edited"] < steps["none"]


@pytest.mark.parametrize("seed", range(3))
def test_a_sampled_answer_is_the_same_with_a_prediction(engine: Engine, seed: int) -> None:
    config = replace(CONFIG, sampling=SamplingConfig(temperature=1.0, seed=seed))
    expected = engine.generate("# tar", config)
    engine.forget()
    assert engine.generate("# tar", replace(config, prediction=expected.text)).token_ids == expected.token_ids


def test_the_first_draft_is_the_beginning_of_a_guess() -> None:
    drafter = RetrievalDrafter(DraftConfig(max_nodes=8, is_history_used=False)).wait()
    request = drafter.begin_guided([5, 6, 7, 8], [[30, 31], [5, 6, 7, 8, 20, 21, 22]])
    (tree,) = drafter.draft([DraftWish(request, 8, 4)])
    assert isinstance(tree, DraftTree)
    assert tree.child(0, 20) > 0
    assert tree.child(tree.child(0, 20), 21) > 0
    assert request.token_ids == [5, 6, 7, 8]
    (tree,) = drafter.draft([DraftWish(drafter.begin([5, 6, 7, 8]), 8, 4)])
    assert isinstance(tree, DraftTree)
    assert tree.child(0, 20) < 0


def test_a_guess_is_no_longer_than_the_context(engine: Engine) -> None:
    most = engine.package.manifest.max_context
    config = replace(CONFIG, prediction="a b " * (1 << 20))
    (guess,) = guessed_answers("# tar", [1, 2], config, engine.tokenizer, most)
    assert 1000 < len(guess) <= most + 2
    assert engine.generate("# tar", config).token_ids == engine.generate("# tar", CONFIG).token_ids
    assert guessed_answers("# tar", [1, 2], replace(config, is_drafted=False), engine.tokenizer, most) == []


def test_declared_tools_are_guessed_calls_of(engine: Engine) -> None:
    assert call_skeletons([TOOL], CallForm()) == [
        '<tool_call>\n{"name": "weather", "arguments": {"city": "a", "unit": "c"}}\n</tool_call>'
    ]
    strange: list[dict[str, object]] = [
        {},
        {"function": 5},
        {"function": {"name": "x", "parameters": {"properties": [1]}}},
    ]
    assert call_skeletons(strange, CallForm("", "", "parameters")) == ['{"name": "x", "parameters": {}}']
    prompt = Conversation([{"role": "user", "content": "x"}], [TOOL] * 3000)
    guesses = guessed_answers(prompt, [1, 2], CONFIG, engine.tokenizer, 2048)
    assert sum(map(len, guesses)) <= 4096


def test_what_is_no_prediction_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^prediction is 5, but must be a text\.$"):
        GenerationConfig(prediction=5)  # type: ignore[arg-type]

"""The prompts of a conversation: each turn, with its own answers to the turns before."""

from dataclasses import replace

import pytest

from reader_edge.prompts import EvalPrompt, FilePrompt, by_category, play_out
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.errors import PromptError
from tests.reader_edge.package_copy import PackageCopy

CONFIG = GenerationConfig(max_tokens=5)
CHAT = FilePrompt(tuple(({"role": "user", "content": text},) for text in ("# tar", "More.", "End.")), "chat", "Line 1")


@pytest.fixture
def chat_engine(chat_package: PackageCopy) -> Engine:
    return Engine.load(chat_package.folder, EngineConfig(is_calibrated=False, is_probed=False))


def test_each_turn_comes_after_the_models_own_answers_to_those_before(chat_engine: Engine) -> None:
    first, second, third = play_out(chat_engine, [CHAT], CONFIG, is_raw=False)
    assert first == EvalPrompt([{"role": "user", "content": "# tar"}], "chat")
    answer = chat_engine.generate(first.prompt, replace(CONFIG, is_drafted=False)).text
    assert answer
    assert second.prompt == [*first.prompt, {"role": "assistant", "content": answer}, CHAT.turns[1][0]]
    assert third.prompt[:3] == second.prompt
    assert [question.text for question in (first, second, third)] == ["# tar", "More.", "End."]


def test_a_text_is_a_message_only_where_it_is_not_wanted_raw(chat_engine: Engine) -> None:
    (raw,) = play_out(chat_engine, [FilePrompt(("# tar",), "", "")], CONFIG, is_raw=True)
    (wrapped,) = play_out(chat_engine, [FilePrompt(("# tar",), "", "")], CONFIG, is_raw=False)
    assert raw.prompt == raw.text == wrapped.text == "# tar"
    assert wrapped.prompt == [{"role": "user", "content": "# tar"}]


def test_a_prompt_that_the_model_cannot_take_is_shown_with_its_line(engine: Engine, chat_package: PackageCopy) -> None:
    with pytest.raises(PromptError, match=r"^Line 1: This model has no chat template"):
        play_out(engine, [CHAT], CONFIG, is_raw=False)
    with pytest.raises(PromptError, match=r"^Line 7: The prompt has .* tokens, but the model's context"):
        play_out(engine, [FilePrompt(("word " * 5000,), "", "Line 7")], CONFIG, is_raw=False)
    chat_package.write_file("chat_template.jinja", b"{{ raise_exception('no system here') }}")
    strict = Engine.load(chat_package.folder, EngineConfig(is_calibrated=False, is_probed=False))
    with pytest.raises(PromptError, match=r"^Line 1: The model's chat template refuses .* no system here"):
        play_out(strict, [CHAT], CONFIG, is_raw=False)


def test_groups_come_in_order_and_only_where_there_are_categories() -> None:
    questions = [EvalPrompt("a", "maths"), EvalPrompt("b"), EvalPrompt("c", "maths")]
    assert by_category(questions, [1, 2, 3]) == {"maths": [1, 3], "none": [2]}
    assert by_category([EvalPrompt("a"), EvalPrompt("b")], [1, 2]) == {}

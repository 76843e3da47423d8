"""Hints at an answer: a right one saves passes, a wrong one changes nothing, and a long one is bounded."""

from dataclasses import replace

import pytest

from reader_edge_runtime import Conversation, Engine, GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.draft_hints import DraftHints, answer_hints
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.text.tokenizer import Tokenizer

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


def test_the_first_draft_is_the_beginning_of_a_hint() -> None:
    drafter = RetrievalDrafter(DraftConfig(max_nodes=8, is_history_used=False)).wait()
    request = drafter.begin(RequestContext([5, 6, 7, 8], DraftHints([[30, 31], [5, 6, 7, 8, 20, 21, 22]])))
    (tree,) = drafter.draft([DraftRequest(request, 8, 4)])
    assert isinstance(tree, DraftTree)
    assert tree.child(0, 20) > 0
    assert tree.child(tree.child(0, 20), 21) > 0
    assert request.token_ids == [5, 6, 7, 8]
    (tree,) = drafter.draft([DraftRequest(drafter.begin(RequestContext([5, 6, 7, 8])), 8, 4)])
    assert isinstance(tree, DraftTree)
    assert tree.child(0, 20) < 0


def test_a_hint_is_a_text_no_longer_than_the_context(engine: Engine) -> None:
    most = engine.package.manifest.max_context
    config = replace(CONFIG, prediction="a b " * (1 << 20))
    (hint,) = answer_hints("# tar", [1, 2], config, engine.tokenizer, most).texts
    assert 1000 < len(hint) <= most + 2
    assert engine.generate("# tar", config).token_ids == engine.generate("# tar", CONFIG).token_ids
    assert not answer_hints("# tar", [1, 2], replace(config, is_drafted=False), engine.tokenizer, most)
    with pytest.raises(ConfigError, match=r"^prediction is 5, but must be a text\.$"):
        GenerationConfig(prediction=5)  # type: ignore[arg-type]


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "unit": "c"}}\n</tool_call>'


def test_a_call_in_an_answer_is_predicted_token_by_token(engine: Engine) -> None:
    prompt = Conversation([{"role": "user", "content": "x"}], [TOOL])
    predictor = answer_hints(prompt, [1, 2], CONFIG, engine.tokenizer, 2048).predictor
    assert predictor is not None
    answer = engine.tokenizer.encode(CALL, adds_special_tokens=False)
    missed = []
    for place in range(len(answer)):
        paths = predictor.paths(answer[:place], {"weather": {"city": ['"Rome"']}})
        if not any(path[:1] == answer[place : place + 1] for path, _ in paths):
            missed.append(engine.tokenizer.decode(answer[place : place + 1]))
    assert "".join(missed).strip('" ,}') in ("", "c")  # where tokens join what was written and what comes
    predictor.paths(answer, {})
    assert predictor.calls == [("weather", {"city": '"Rome"', "unit": '"c"'})]


def test_calls_of_the_conversation_are_known(engine: Engine) -> None:
    arguments = [{"city": "Oslo"}, '{"city": "Bergen", "unit": "f"}', "no JSON", "[" * 5000]
    functions = [{"name": "weather", "arguments": each} for each in arguments]
    calls = [{"role": "assistant", "tool_calls": [{"type": "function", "function": each}]} for each in functions]
    prompt = Conversation([{"role": "user", "content": "x"}, *calls], [TOOL])
    predictor = answer_hints(prompt, [1, 2], CONFIG, engine.tokenizer, 2048).predictor
    assert predictor is not None
    assert predictor.calls == [("weather", {"city": '"Oslo"'}), ("weather", {"city": '"Bergen"', "unit": '"f"'})]


FORM = r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "[a-z]{1,8}", "unit": "(c|f)"\}\}\n</tool_call>'


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("grammar", [None, Grammar("regex", FORM)], ids=["free", "held by a grammar"])
def test_answers_with_tools_are_those_of_plain_decoding(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, temperature: float, grammar: Grammar | None
) -> None:
    prompt = Conversation([{"role": "user", "content": CALL + "\n<tool_call>"}], [TOOL])
    token_ids = engine.tokenizer.encode(prompt.messages[0]["content"])
    monkeypatch.setattr(Tokenizer, "encode_chat", lambda self, conversation: token_ids)
    config = replace(CONFIG, grammar=grammar, sampling=SamplingConfig(temperature=temperature, seed=7))
    plain = engine.generate(prompt, replace(config, is_drafted=False))
    engine.forget()
    first, _, last = engine.generate_batch([prompt, "# tar", prompt], config)
    assert [first.token_ids, last.token_ids] == [plain.token_ids] * 2
    if grammar is not None and temperature == 0:
        assert first.stats.drafted_by_source["tools"] > 0

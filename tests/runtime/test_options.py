"""Options beside a prompt are those of the config, checked when it is made; answers are read as their format says."""

import asyncio
import json
import math
import weakref
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

import reader_edge
import reader_edge_runtime
from reader_edge_runtime import (
    AsyncEngine,
    Conversation,
    Engine,
    EngineConfig,
    GenerationConfig,
    GenerationResult,
    Grammar,
    SamplingConfig,
)
from reader_edge_runtime.answer import AnswerFormat
from reader_edge_runtime.call_options import EngineOptions, GenerationOptions, with_options
from reader_edge_runtime.config import DraftConfig, ServingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import AnswerError, ClosedError, ConfigError, PromptError
from reader_edge_runtime.plug_ins import provider_names
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"const": 7}},
    "required": ["a"],
    "additionalProperties": False,
}


class Answer(BaseModel):
    a: int


def weather(city: str) -> str:
    """How warm it is."""
    return city


def result(text: str, answer_format: AnswerFormat, finish_reason: Any = "stop") -> GenerationResult:
    stats = GenerationStats(num_prompt_tokens=5, num_reused_tokens=2, num_tokens=3)
    return GenerationResult(text, (1, 2, 3), finish_reason, stats, answer_format=answer_format)


def test_every_field_of_both_configs_is_an_option() -> None:
    names = {each.name for kind in (GenerationConfig, SamplingConfig) for each in fields(kind)}
    assert GenerationOptions.__annotations__.keys() == names | {"images", "schema", "tools"}
    assert EngineOptions.__annotations__.keys() == {each.name for each in fields(EngineConfig)}


@pytest.mark.usefixtures("two_cores")
def test_fields_of_an_engines_config_stand_beside_the_model_and_over_the_config(demo_folder: Path) -> None:
    quick = EngineConfig(is_calibrated=False, is_probed=False)
    with Engine.load(demo_folder, quick, threads=2, max_batch=None) as engine:
        assert engine.decoder.config == replace(quick, threads=2)
    wrong: Any = {"thread": 2}
    with pytest.raises(ConfigError, match=r"^There is no option 'thread': do you mean 'threads'\?$"):
        Engine.load(demo_folder, **wrong)


def test_an_engine_in_print_is_its_package_and_whether_it_is_closed(demo_folder: Path) -> None:
    with Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_probed=False)) as engine:
        assert repr(engine) == f"<Engine of '{demo_folder}'>"
    assert repr(engine) == f"<Engine of '{demo_folder}', closed>"


def test_options_are_what_the_config_would_say(engine: Engine) -> None:
    config = GenerationConfig(max_tokens=9, sampling=SamplingConfig(temperature=0.7, seed=3), stop=("\n\n",))
    expected = engine.generate("# tar", config)
    given: Any = {"max_tokens": 9, "temperature": 0.7, "seed": 3, "stop": "\n\n"}
    assert engine.generate("# tar", **given).token_ids == expected.token_ids
    assert engine.generate_batch(["# tar"], **given)[0].token_ids == expected.token_ids
    *_, last = engine.stream("# tar", **given)
    assert last.result is not None
    assert (last.result.text, last.result.token_ids) == (expected.text, expected.token_ids)

    async def ask() -> GenerationResult:
        async with AsyncEngine(engine) as serving:
            return await serving.generate("# tar", **given)

    assert asyncio.run(ask()).token_ids == expected.token_ids


def test_options_stand_over_the_config_and_the_recommendation() -> None:
    config = GenerationConfig(max_tokens=9, sampling=SamplingConfig(temperature=0.7, seed=3))
    _, found = with_options("a", config, {"max_tokens": 4, "top_p": 0.5, "stop": ["x"], "seed": None}, {"top_k": 5})
    assert found == GenerationConfig(4, SamplingConfig(temperature=0.7, seed=3, top_p=0.5), ("x",))
    assert with_options("a", config, {"top_k": None}, {})[1] is config
    _, found = with_options("a", None, {"temperature": 0.7, "seed": 3}, {"top_k": 5, "temperature": 1.0})
    assert found.sampling == SamplingConfig(temperature=0.7, top_k=5, seed=3)
    assert with_options("a", None, {"max_tokens": 3}, {"top_k": 5})[1].sampling is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_token": 5}, "There is no option 'max_token': do you mean 'max_tokens'?"),
        ({"xyz": 5}, "There is no option 'xyz': there are max_tokens, "),
        ({"max_tokens": "5"}, "max_tokens is '5', but must be a whole number"),
        ({"temperature": -1}, "temperature is -1, but must be from 0 to 100"),
        ({"stop": ""}, "stop is "),
        ({"stop": 5}, "stop is 5"),
        ({"schema": 5}, "schema is 5, but must be a JSON schema"),
        ({"schema": "nothing"}, "schema is 'nothing', which is no JSON schema"),
        ({"schema": "[]"}, "schema is '\\[\\]', but must be a JSON schema"),
        ({"schema": {"a": {1}}}, "which is no JSON schema"),
        ({"schema": {}, "tools": [weather]}, "schema and tools cannot both"),
        ({"schema": {}, "grammar": Grammar("regex", "a")}, "schema and grammar cannot both"),
        ({"tools": weather}, "tools is .*, but must be a list of functions"),
        ({"tools": "weather"}, "tools is 'weather', but must be a list of functions"),
        ({"tools": [5]}, "A tool is 5, but must be a function"),
    ],
)
def test_an_option_that_is_none_is_one_sentence(engine: Engine, options: Any, words: str) -> None:
    for door in (engine.generate, engine.stream, lambda prompt, **given: engine.generate_batch([prompt], **given)):
        with pytest.raises(ConfigError, match=words):
            door("# tar", **options)


def test_tools_make_a_text_the_users_and_have_no_place_beside_tokens_or_other_tools() -> None:
    prompt, config = with_options("Hi", None, {"tools": [weather]}, {})
    assert isinstance(prompt, Conversation)
    assert prompt.messages == [{"role": "user", "content": "Hi"}]
    assert prompt.tools[0]["function"]["name"] == "weather"
    assert config.splits_thinking
    messages = [{"role": "user", "content": "Hi"}]
    chat = Conversation(messages, template_args={"enable_thinking": False})
    for given in (messages, tuple(messages), chat):
        chat_with_tools, _ = with_options(given, None, {"tools": (weather,)}, {})
        assert isinstance(chat_with_tools, Conversation)
        assert list(chat_with_tools.messages) == messages
    with pytest.raises(PromptError, match="has tools already"):
        with_options(prompt, None, {"tools": [weather]}, {})
    for ids in ([1, 2], 5):
        with pytest.raises(PromptError, match="give a text or messages"):
            with_options(ids, None, {"tools": [weather]}, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)])
def test_an_answer_to_a_schema_is_parsed(engine: Engine, schema: Any) -> None:
    pytest.importorskip("llguidance", reason="grammars are an extra")
    answer = engine.generate("# tar", schema=schema, max_tokens=40)
    assert answer.parsed == {"a": 7}
    assert json.loads(answer.text) == {"a": 7}
    assert engine.generate("# tar", max_tokens=4).parsed is None


def test_an_answer_to_a_class_is_an_object_of_it() -> None:
    answer_format = AnswerFormat(Grammar.of_schema(Answer))
    assert result('{"a": 5}', answer_format).parsed == Answer(a=5)
    with pytest.raises(AnswerError, match=r"The answer '\{\"a\"' ended \('length'\) before its JSON did: allow more"):
        _ = result('{"a"', answer_format, "length").parsed
    with pytest.raises(AnswerError, match=r"The answer .* is none that Answer takes: 1 validation error"):
        _ = result('{"a": "b"}', answer_format).parsed


def test_calls_in_an_answer_are_read_and_their_message_goes_on_with_the_conversation() -> None:
    prompt, _ = with_options("Hi", None, {"tools": [weather]}, {})
    assert isinstance(prompt, Conversation)
    text = 'Well.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    answer = result(text, AnswerFormat(None, prompt.tools, CallSyntax()))
    (call,) = answer.tool_calls
    assert (call.name, call.arguments, len(call.id)) == ("weather", {"city": "Bern"}, 9)
    assert weather(**call.arguments) == "Bern"
    assert answer.message["tool_calls"] == [call.message]
    assert answer.message["content"].strip() == "Well."
    assert answer.tool_calls[0].id == call.id
    plain = result("Well.", AnswerFormat())
    assert (plain.tool_calls, plain.message) == ((), {"role": "assistant", "content": "Well."})


def test_a_result_is_short_in_print_and_tells_its_usage() -> None:
    answer = result("word " * 200, AnswerFormat())
    assert len(str(answer)) < 130
    assert "\n" not in str(answer)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.cached_tokens) == (5, 3, 8, 2)


def test_an_engine_that_is_closed_says_so(demo_folder: Path) -> None:
    with Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_probed=False)) as engine:
        assert engine.context_length == engine.package.manifest.max_context
        begun = engine.stream("# tar", max_tokens=50)
        next(begun)
        unread = engine.stream("# tar", max_tokens=50)
        held = weakref.ref(engine.decoder.target)
    assert held() is None  # the model's memory is given back
    engine.close()
    with pytest.raises(ClosedError, match=r"^This engine is closed: load it again\.$"):
        list(begun)
    with pytest.raises(ClosedError, match="closed"):
        list(unread)
    uses: list[Any] = [lambda: engine.generate("# tar"), engine.forget, lambda: engine.decoder]
    uses += [lambda: engine.generate_batch(["# tar"]), lambda: AsyncEngine(engine)]
    for use in uses:
        with pytest.raises(ClosedError, match="closed"):
            use()


def test_serving_an_engine_that_is_closed_ends_in_an_error(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Decoder.step

    def unending(self: Decoder) -> list[Request]:
        return [] if any(request.output_token_ids for request in self.running) else step(self)

    monkeypatch.setattr(Decoder, "step", unending)

    async def ask() -> None:
        engine = Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_probed=False))
        async with AsyncEngine(engine) as serving:
            assert serving.context_length == engine.context_length
            stream = serving.stream("# tar", max_tokens=2000, ignores_eos=True)
            await anext(stream)
            engine.close()
            assert [chunk.finish_reason async for chunk in stream][-1] == "cancelled"
            with pytest.raises(ClosedError):
                await serving.generate("# tar")

    asyncio.run(asyncio.wait_for(ask(), 60))


@pytest.mark.parametrize("module", [reader_edge, reader_edge_runtime])
def test_dir_shows_what_there_is(module: Any) -> None:
    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, name) is not None for name in dir(module))


@pytest.mark.parametrize(
    ("make", "name", "value", "words"),
    [
        (EngineConfig, "threads", 1.5, "a whole number"),
        (EngineConfig, "max_batch", True, "a whole number"),
        (EngineConfig, "is_probed", 1, "True or False"),
        (EngineConfig, "provider", "tpu", f"one of {', '.join(provider_names())}"),
        (EngineConfig, "provider", np.array(["cpu", "cuda"]), f"one of {', '.join(provider_names())}"),
        (DraftConfig, "max_nodes", "64", "a whole number"),
        (DraftConfig, "max_depth", 256, "from 1 to 255"),
        (SamplingConfig, "temperature", math.nan, "from 0 to 100"),
        (SamplingConfig, "temperature", "0.5", "a number"),
        (SamplingConfig, "temperature", True, "a number"),
        (SamplingConfig, "top_p", 2, "from 0 to 1"),
        (SamplingConfig, "top_k", 1.5, "a whole number"),
        (SamplingConfig, "top_k", None, "a whole number"),
        (SamplingConfig, "seed", 2**64, "from 0 to 2**64 - 1"),
        (SamplingConfig, "logit_bias", [1], "a mapping of token ids to numbers"),
        (SamplingConfig, "logit_bias token id", {1.5: 1.0}, "a whole number"),
        (SamplingConfig, "logit_bias token id", {2**70: 1.0}, "from 0 to 2147483647"),
        (SamplingConfig, "logit_bias of token 1", {1: math.nan}, "from -10000 to 10000"),
        (GenerationConfig, "max_tokens", 1.5, "a whole number"),
        (GenerationConfig, "max_tokens", 0, "1 or more"),
        (GenerationConfig, "sampling", {}, "a SamplingConfig"),
        (GenerationConfig, "stop", "", "texts that are not empty"),
        (GenerationConfig, "stop", (10**5000,), "texts that are not empty"),
        (GenerationConfig, "stop", (5,), "texts that are not empty"),
        (GenerationConfig, "stop", ("",), "texts that are not empty"),
        (GenerationConfig, "stop_token_ids", 5, "a tuple of token ids"),
        (GenerationConfig, "stop_token_ids", "", "a tuple of token ids"),
        (GenerationConfig, "stop_token_ids", b"a", "a tuple of token ids"),
        (GenerationConfig, "stop", b"", "texts that are not empty"),
        (GenerationConfig, "stop_token_ids", (2.0,), "a whole number"),
        (GenerationConfig, "stop_token_ids", (-1,), "from 0 to 2147483647"),
    ],
)
def test_an_option_of_another_kind_or_outside_its_range_is_one_sentence(
    make: Callable[..., object], name: str, value: object, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**{name.split()[0]: value})
    assert str(caught.value).startswith(f"{name} is ")
    assert str(caught.value).endswith(f", but must be {words}.")


@pytest.mark.parametrize("name", ["temperature", "top_k", "seed"])
def test_a_number_of_too_many_digits_to_show_is_one_sentence(name: str) -> None:
    choice: dict[str, Any] = {name: -(10**5000)}
    with pytest.raises(ConfigError, match=f"^{name} is too long to show, but must be "):
        SamplingConfig(**choice)


def test_a_refusal_shows_no_more_than_the_beginning_of_a_long_value() -> None:
    temperature: Any = "9" * 5000
    with pytest.raises(ConfigError, match=r"^temperature is '9{75}\.\.\.', but must be a number\.$"):
        SamplingConfig(temperature=temperature)


def test_numbers_of_numpy_and_lists_are_kept_as_plain_values() -> None:
    choices: dict[str, Any] = {
        "temperature": np.float32(0.5),
        "top_k": np.uint8(200),
        "logit_bias": {np.int64(3): np.float32(2)},
    }
    limits: dict[str, Any] = {"max_tokens": np.int64(7), "stop": ["a"], "stop_token_ids": [np.int32(4)]}
    sampling = SamplingConfig(**choices)
    config = GenerationConfig(sampling=sampling, **limits)
    plain = SamplingConfig(temperature=0.5, top_k=200, logit_bias={3: 2.0})
    assert config == GenerationConfig(max_tokens=7, sampling=plain, stop=("a",), stop_token_ids=(4,))
    assert type(config.max_tokens) is type(sampling.top_k) is int


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        (GenerationConfig, "temperature", r"give sampling=SamplingConfig\(temperature=...\), or give it beside"),
        (GenerationConfig, "max_token", "no field of GenerationConfig 'max_token': do you mean 'max_tokens'"),
        (SamplingConfig, "temp", "no field of SamplingConfig 'temp': "),
        (EngineConfig, "thread", "do you mean 'threads'"),
        (DraftConfig, "nodes", "do you mean 'max_nodes'"),
        (ServingConfig, "waiting", "do you mean 'max_waiting'"),
    ],
)
def test_a_field_that_a_config_has_not_is_one_sentence(config: Any, field: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(**{field: 1})

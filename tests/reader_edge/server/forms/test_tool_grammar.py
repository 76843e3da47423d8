"""Calls that must be made, on vocabularies like those of model families: held, read, the same drafted and plain."""

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reader_edge.server.api_error import ApiError
from reader_edge.server.settings import ServerSettings
from reader_edge.server.tool_grammar import tool_grammar
from reader_edge_runtime import AsyncEngine, Conversation, Engine, GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.text.tool_calls.call_parser import ToolCallParser
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse
from tests.family_tokenizers import FAMILIES, MORE_FAMILIES, family_engine
from tests.reader_edge.server.conftest import Served

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")

USER = {"role": "user", "content": "Weather?"}
HELD = [name for name in (*FAMILIES, *MORE_FAMILIES) if name != "lfm2"]
PROPERTIES = {"city": {"type": "string", "enum": ["Ulm", "<b>Bonn</b>"]}, "days": {"enum": [1, 2]}}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["city", "days"], "additionalProperties": False}


def tools(is_strict: bool = False) -> tuple[dict[str, Any], ...]:
    weather = {"name": "weather", "parameters": PARAMETERS} | ({"strict": True} if is_strict else {})
    return ({"type": "function", "function": weather}, {"type": "function", "function": {"name": "time"}})


REQUIRED = ToolUse(tools(), ("weather", "time"), is_required=True)
STRICT = ToolUse(tools(True), ("weather", "time"), is_strict=True)


def read(model: Engine, use: ToolUse, text: str) -> tuple[str, list[tuple[str, Any]]]:
    reader = ToolCallParser(use, model.tokenizer.call_syntax)
    output = reader.push(text, is_last=True)
    arguments = ["".join(each.text for each in output if each.call == number) for number in range(reader.num_calls)]
    names = [each.name for each in output if each.name is not None]
    return "".join(each.text for each in output if each.call < 0), list(
        zip(names, map(json.loads, arguments), strict=True)
    )


def is_right(name: str, arguments: Any) -> bool:
    if name == "time":
        return bool(arguments == {})
    return arguments["city"] in ("Ulm", "<b>Bonn</b>") and arguments["days"] in (1, 2)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", HELD)
def test_a_call_that_must_be_is_made(engine: Engine, name: str, temperature: float) -> None:
    model = family_engine(engine, name)
    for use in (replace(REQUIRED, is_parallel=False), replace(REQUIRED, names=("weather",), is_parallel=False)):
        grammar = tool_grammar(use, model.tokenizer.call_syntax, None)
        sampling = SamplingConfig(temperature=temperature, seed=2)
        config = GenerationConfig(max_tokens=150, sampling=sampling, grammar=grammar)
        prompt = Conversation([USER], use.tools)
        drafted, plain = model.generate(prompt, config), model.generate(prompt, replace(config, is_drafted=False))
        assert (drafted.token_ids, drafted.finish_reason) == (plain.token_ids, "stop")
        content, ((called, arguments),) = read(model, use, drafted.text)
        assert content == ""
        assert called in use.names
        assert is_right(called, arguments)


def accepts(model: Engine, grammar: Grammar | None, text: str) -> bool:
    """Whether an answer that is held may be this, special tokens as tokens."""
    assert grammar is not None
    tokens = model.tokenizer.every_token_bytes(model.package.manifest.vocab_size)
    special = model.tokenizer.special_tokens
    constraint = model._grammars.constraint(grammar)
    try:
        for part in re.split(f"({'|'.join(map(re.escape, special.values()))})", text):
            rest = part.encode()
            while rest and not constraint.is_over:
                allowed = (
                    int(i) for i in np.flatnonzero(constraint.mask()) if tokens[i] and rest.startswith(tokens[i])
                )
                fitting = [i for i in allowed if special.get(i, part) == part]
                if not fitting:
                    return False
                token_id = max(fitting, key=lambda i: len(tokens[i]))
                constraint.advance(token_id)
                rest = rest[len(tokens[token_id]) :]
        return not rest and (constraint.is_over or bool(constraint.mask()[model.package.manifest.eos_token_ids[0]]))
    finally:
        constraint.close()


def call_text(model: Engine, name: str, arguments: dict[str, Any]) -> str:
    """A call as the form has it, and nothing around it."""
    form = model.tokenizer.call_syntax
    match form.notation.value:
        case "object":
            return json.dumps({form.name: name, form.arguments: arguments}, ensure_ascii=False)
        case "keyed":
            return json.dumps({name: arguments}, ensure_ascii=False)
        case "named":
            return name + form.between + json.dumps(arguments, ensure_ascii=False)
        case _:
            before, between, behind = form.parameter
            texts = [f"{before}{key}{between}{value}{behind}" for key, value in arguments.items()]
            return name + form.between + "".join(texts)


@pytest.mark.parametrize("name", [name for name in HELD if name != "gpt-oss"])
def test_beside_text_strict_calls_are_held_and_text_is_free(engine: Engine, name: str) -> None:
    model = family_engine(engine, name)
    form = model.tokenizer.call_syntax
    grammar = tool_grammar(STRICT, form, None)

    def calls(*texts: str) -> str:
        return form.opening + (form.joint or "").join(form.begin + text + form.end for text in texts) + form.closing

    args = {"city": "<b>Bonn</b>", "days": 2}
    right = call_text(model, "weather", args)
    assert accepts(model, grammar, calls(right))
    assert read(model, STRICT, calls(right)) == ("", [("weather", {"city": "<b>Bonn</b>", "days": 2})])
    assert not accepts(model, grammar, calls(call_text(model, "weather", {"city": "Rome", "days": 2})))
    assert not accepts(model, grammar, calls(call_text(model, "other", {})))
    assert accepts(model, grammar, "No <b>call</b> is needed.")
    if form.tag:
        assert accepts(model, grammar, "Let me see. " + calls(right))
        assert not accepts(model, grammar, form.tag + calls(right))
        behind = calls(right) + " Done."  # only where the call has an end
        assert not accepts(model, grammar, behind) or read(model, STRICT, behind)[1] == [("weather", args)]
        both = calls(right, call_text(model, "time", {}))
        assert accepts(model, grammar, both) == (form.joint is not None)
        assert not accepts(model, tool_grammar(replace(STRICT, is_parallel=False), form, None), both)


def test_special_tokens_of_thinking_stay_free_beside_strict_calls(engine: Engine) -> None:
    model = family_engine(engine, "tekken")
    grammar = tool_grammar(STRICT, model.tokenizer.call_syntax, None)
    assert accepts(model, grammar, '[THINK]Hm.[/THINK]Well.[TOOL_CALLS]weather[ARGS]{"city": "Ulm", "days": 1}')
    assert not accepts(model, grammar, "[THINK]Hm.[/THINK]Well.[TOOL_CALLS]weather[ARGS]{}")


def test_texts_without_quotes_are_free_where_the_schema_has_no_rule(engine: Engine) -> None:
    for name in ("qwen-coder", "glm", "minicpm"):
        model = family_engine(engine, name)
        form = model.tokenizer.call_syntax
        properties: dict[str, Any] = {"text": {"type": "string"}, "more": {"type": "integer"}}
        parameters = {"type": "object", "properties": properties}
        function = {"name": "say", "parameters": parameters, "strict": True}
        use = ToolUse(({"type": "function", "function": function},), ("say",), is_required=True, is_strict=True)
        grammar = tool_grammar(use, form, None)
        for arguments in ({"text": 'a "quoted" <b>\n</x>'}, {"more": 5}, {"text": "a", "more": -1}, {}):
            text = form.begin + call_text(model, "say", arguments) + form.end
            assert accepts(model, grammar, text)
            assert read(model, use, text) == ("", [("say", arguments)])
        properties["text"] = {"type": "string", "maxLength": 4}
        with pytest.raises(ApiError, match="'maxLength' cannot be held"):
            tool_grammar(use, form, None)
        function["strict"] = False
        lenient = tool_grammar(use, form, None)
        assert lenient is not None
        assert lenient.left_out == ("'maxLength' of texts without quotes",)


def test_a_text_in_cdata_is_held_up_to_its_own_end(engine: Engine) -> None:
    model = family_engine(engine, "minicpm")
    function = {"name": "say", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}
    use = ToolUse(({"type": "function", "function": function},), ("say",), is_required=True)
    grammar = tool_grammar(use, model.tokenizer.call_syntax, None)
    text = '</param><param name="text">x</param></function>\n'
    call = f'<function name="say"><param name="text"><![CDATA[{text}]]></param></function>'
    assert accepts(model, grammar, call)
    assert read(model, use, call) == ("", [("say", {"text": text})])
    assert not accepts(model, grammar, call.replace("]]>", ""))


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"pattern": "^x"}, "pattern"),
        ({"type": "string", "allOf": [{"maxLength": 4}]}, "maxLength"),
        ({"type": "string", "oneOf": [{"const": f"c{number}"} for number in range(300)]}, "oneOf"),
    ],
)
def test_rules_for_unquoted_texts_are_refused_anywhere(engine: Engine, schema: dict[str, Any], keyword: str) -> None:
    for name in ("qwen-coder", "glm"):
        function = {"name": "say", "parameters": {"type": "object", "properties": {"a": schema}}, "strict": True}
        use = ToolUse(({"type": "function", "function": function},), ("say",), is_required=True, is_strict=True)
        with pytest.raises(ApiError, match=f"'{keyword}' cannot be held"):
            tool_grammar(use, family_engine(engine, name).tokenizer.call_syntax, None)


OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}  # as pydantic writes `str | None`
KINDS: dict[str, Any] = {
    "optional": OPTIONAL,
    "listed": {"type": ["string", "null"], "enum": ["red", "7", None]},
    "referred": {"$ref": "#/$defs/Colour"},
    "count": {"oneOf": [{"type": "integer"}, {"const": "all"}]},
    "mixed": {"type": ["number", "string"]},
}
MODEL = {"type": "object", "properties": KINDS, "additionalProperties": False}
COLOURS = {"Colour": {"enum": ["red", "5"], "type": "string"}}


@pytest.mark.parametrize(
    "parameters", [MODEL | {"$defs": COLOURS}, {"$ref": "#/$defs/M", "$defs": COLOURS | {"M": MODEL}}]
)
@pytest.mark.parametrize("name", ["qwen-coder", "glm"])
def test_unquoted_values_are_read_by_their_schema(engine: Engine, name: str, parameters: dict[str, Any]) -> None:
    model = family_engine(engine, name)
    form = model.tokenizer.call_syntax
    function = {"name": "say", "parameters": parameters, "strict": True}
    use = ToolUse(({"type": "function", "function": function},), ("say",), is_required=True, is_strict=True)
    grammar = tool_grammar(use, form, None)

    def output(arguments: dict[str, Any]) -> str:
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
        return form.begin + call_text(model, "say", texts) + form.end

    rights: list[dict[str, Any]] = [
        {"optional": "01234", "listed": "7", "referred": "5", "count": 3, "mixed": 2.5},
        {"optional": "12345", "listed": None, "referred": "red", "count": "all", "mixed": "Ulm"},
        {"optional": None, "listed": "red"},
        {"optional": "true"},
    ]
    for arguments in rights:
        assert accepts(model, grammar, output(arguments))
        assert read(model, use, output(arguments)) == ("", [("say", arguments)])
    for wrong in ({"listed": "blue"}, {"referred": "7"}, {"count": "some"}, {"count": 1.5}):
        assert not accepts(model, grammar, output(wrong))


def test_what_cannot_be_held_is_refused_in_a_sentence(engine: Engine) -> None:
    form = family_engine(engine, "lfm2").tokenizer.call_syntax
    for use in (REQUIRED, STRICT):
        with pytest.raises(ApiError, match="notation that no grammar holds"):
            tool_grammar(use, form, None)
    assert tool_grammar(replace(STRICT, is_strict=False), form, None) is None
    with pytest.raises(ApiError, match="with the same token"):
        tool_grammar(STRICT, family_engine(engine, "gpt-oss").tokenizer.call_syntax, None)


def test_a_served_call_behind_a_special_token_comes_as_a_call(engine: Engine) -> None:
    sent = {"model": "demo", "messages": [USER], "tools": list(tools()), "tool_choice": "required", "max_tokens": 200}
    sent |= {"parallel_tool_calls": False, "temperature": 1, "seed": 3}
    for name in ("mistral-v3", "tekken"):
        served = Served(AsyncEngine(family_engine(engine, name)), ServerSettings("demo", max_tokens=500))
        response = served.post(
            "/v1/chat/completions", sent | {"parallel_tool_calls": False, "temperature": 1, "seed": 3}
        )
        assert response.status_code == 200, response.text
        choice = response.json()["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
        assert is_right(call["function"]["name"], json.loads(call["function"]["arguments"]))
        assert len(call["id"]) == 9


def test_the_arguments_of_a_call_are_compared_with_their_schema_once_more(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"model": "demo", "messages": [USER], "tool_choice": "required", "max_tokens": 200, "seed": 3}
    fields |= {"parallel_tool_calls": False, "temperature": 1, "tools": list(tools(True))}
    model = family_engine(engine, "mistral-v3")
    compared: list[tuple[Grammar, str]] = []
    monkeypatch.setattr(model, "compare", lambda *given: compared.append(given))
    served = Served(AsyncEngine(model), ServerSettings("demo", max_tokens=500))
    for stream in (False, True):
        assert served.post("/v1/chat/completions", fields | {"stream": stream}).status_code == 200
    assert len(compared) == 2
    monkeypatch.undo()
    with caplog.at_level("ERROR"):
        for grammar, arguments in compared:
            model.compare(grammar, arguments)
        model.compare(
            Grammar("json_schema", json.dumps(PARAMETERS), "parameters of 'weather'"), '{"city":"Rome","days":1}'
        )
        model._grammars._checks.wait()
    assert [record.getMessage() for record in caplog.records] == [
        "An answer does not satisfy its schema (parameters of 'weather'): "
        "'enum' at #/properties/city/enum does not hold."
    ]

"""Ollama's interface: the same answers as OpenAI's gives, in Ollama's words, whole and in lines."""

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from reader_edge.server.app import make_app
from reader_edge.server.completion import AnswerParser
from reader_edge.server.model_pool import ModelPool
from reader_edge.server.ollama.bodies import OpenCalls
from reader_edge.server.ollama.endpoints import AnswerPiece, OllamaParser
from reader_edge.server.served_model import ServedModel
from reader_edge.server.settings import LIMIT_HEADER, ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, GenerationChunk
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tool_calls.call_parser import ToolCallParser
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse
from tests.reader_edge.package_copy import CHAT_TEMPLATE
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.ollama_requests import (
    CHAT,
    DURATIONS,
    GREEDY,
    PROMPT,
    USER,
    WEATHER,
    assert_refused,
    lines,
    whole,
)


def test_a_chat_says_what_openai_s_face_says(served: Served) -> None:
    output = whole(served, "/api/chat", CHAT)
    sent = {"model": "demo", "messages": [USER], "temperature": 0, "max_tokens": 40}
    choice = served.post("/v1/chat/completions", sent).json()["choices"][0]
    assert output["message"] == {"role": "assistant", "content": choice["message"]["content"]}
    assert output["done_reason"] == choice["finish_reason"] == "length"
    assert (output["model"], output["done"], output["load_duration"]) == ("demo", True, 0)
    assert (output["prompt_eval_count"], output["eval_count"]) == (served_prompt_tokens(served), 40)
    assert all(isinstance(output[name], int) and output[name] > 0 for name in DURATIONS)
    assert output["created_at"].endswith("Z")


def served_prompt_tokens(served: Served) -> int:
    sent = {"model": "demo", "messages": [USER], "max_tokens": 1}
    num_tokens: int = served.post("/v1/chat/completions", sent).json()["usage"]["prompt_tokens"]
    return num_tokens


@pytest.mark.parametrize(("path", "body", "part"), [("/api/chat", CHAT, "message"), ("/api/generate", PROMPT, "")])
def test_a_stream_says_what_the_whole_says(served: Served, path: str, body: dict[str, Any], part: str) -> None:
    def text(output: Any) -> str:
        shown: str = output["message"]["content"] if part else output["response"]
        return shown

    answer = whole(served, path, body)
    *pieces, last = lines(served, path, body)
    assert len(pieces) > 1
    assert "".join(map(text, pieces)) == text(answer)
    assert text(last) == ""
    assert not any(piece["done"] for piece in pieces)
    assert last["done"] is True
    for name in ("done_reason", "eval_count", "prompt_eval_count"):
        assert last[name] == answer[name]


def test_a_raw_prompt_goes_on_as_a_completion_does(served: Served) -> None:
    output = whole(served, "/api/generate", PROMPT)["response"]
    assert output == served.complete(prompt="# tar\n", max_tokens=40)["choices"][0]["text"]


def test_a_prompt_and_a_system_message_are_a_conversation(served: Served) -> None:
    body = {"model": "demo", "prompt": "Hi", "system": "Be brief.", "options": GREEDY}
    messages = [{"role": "system", "content": "Be brief."}, USER]
    output = whole(served, "/api/generate", body)["response"]
    assert output == whole(served, "/api/chat", CHAT | {"messages": messages})["message"]["content"]
    assert output != whole(served, "/api/generate", body | {"system": ""})["response"]


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"temperature": 0.9, "seed": 7, "top_k": 0, "top_p": 1}, {"temperature": 0.9, "seed": 7}),
        ({"seed": 3}, {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 3}),
        ({"temperature": 0, "repeat_penalty": 1.3}, {"temperature": 0, "repetition_penalty": 1.3}),
        ({"temperature": 0, "repeat_penalty": 1.3, "repeat_last_n": 0}, {"temperature": 0}),
        ({"temperature": 0, "presence_penalty": 1, "frequency_penalty": 1},) * 2,
        ({"temperature": 0, "repeat_penalty": 0, "new_topic_penalty": 0}, {"temperature": 0}),
        ({"temperature": 0, "stop": ["e"]}, {"temperature": 0, "stop": ["e"]}),
        ({"temperature": 0, "min_p": 0.1, "num_ctx": 4096, "num_gpu": 99, "mirostat": 0}, {"temperature": 0}),
    ],
)
def test_options_mean_what_openai_s_fields_mean(served: Served, options: Any, fields: Any) -> None:
    output = whole(served, "/api/generate", PROMPT | {"options": {"num_predict": 30} | options})["response"]
    sent = {"prompt": "# tar\n", "max_tokens": 30, "temperature": 0.8} | fields
    assert output == served.complete(**sent)["choices"][0]["text"]


@pytest.mark.parametrize("num_predict", [-1, -2, 0, 501, 10**9])
def test_an_answer_without_an_end_has_as_many_tokens_as_there_may_be(served: Served, num_predict: int) -> None:
    options = {"num_predict": num_predict, "temperature": 0, "stop": ["e"]}
    response = served.post("/api/generate", PROMPT | {"options": options, "stream": False})
    assert response.json()["done_reason"] == "stop"
    assert response.headers.get(LIMIT_HEADER) == ("500" if num_predict > 500 else None)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_has_the_form_that_is_requested(served: Served, stream: bool) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    schema = {"type": "object", "properties": {"size": {"enum": ["S", "L"]}}, "required": ["size"]}
    body = CHAT | {"format": schema, "options": {"num_predict": 200, "seed": 1}}
    if stream:
        text = "".join(line["message"]["content"] for line in lines(served, "/api/chat", body))
    else:
        text = whole(served, "/api/chat", body)["message"]["content"]
    jsonschema.validate(json.loads(text), schema)


def test_an_answer_is_json_where_that_is_requested(served: Served) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    free = whole(served, "/api/generate", PROMPT | {"format": "json", "options": {"num_predict": 400, "seed": 2}})
    assert free["response"].lstrip().startswith("{")


def test_a_model_without_a_chat_template_shows_none_and_completes(engine: Engine) -> None:
    served = Served(AsyncEngine(engine), ServerSettings("demo"))
    shown = served.post("/api/show", {"model": "demo"}).json()
    assert (shown["template"], shown["capabilities"]) == ("", ["completion"])
    body = {"model": "demo", "prompt": "# tar", "options": GREEDY}
    assert (
        whole(served, "/api/generate", body)["response"]
        == whole(served, "/api/generate", body | {"raw": True})["response"]
    )
    assert_refused(served.post("/api/chat", CHAT), 400, "send a plain prompt to /api/generate")


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_calls_are_objects_and_come_whole(size: int) -> None:
    use = ToolUse((WEATHER,), ("weather",))
    text = '<tool_call>\n{"name": "weather", "arguments": {"place": "Oslo"}}\n</tool_call>'
    reader = OllamaParser(AnswerParser(ToolCallParser(use, CallSyntax())))
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    pieces = [reader.push(GenerationChunk(part, ())) for part in parts[:-1]]
    pieces.append(reader.push(GenerationChunk(parts[-1], (), finish_reason="stop")))
    assert "".join(piece.text for piece in pieces) == ""
    calls = [call for piece in pieces for call in piece.calls]
    assert calls == [{"function": {"index": 0, "name": "weather", "arguments": {"place": "Oslo"}}}]


def test_a_call_that_is_cut_is_no_call_and_thoughts_are_kept_apart() -> None:
    use = ToolUse((WEATHER,), ("weather",), is_required=True)
    reader = OllamaParser(AnswerParser(ToolCallParser(use, CallSyntax())))
    piece = reader.push(
        GenerationChunk('<tool_call>\n{"name": "weather", "arguments": {"pla', (), "length", reasoning="Hm.")
    )
    assert piece == AnswerPiece("", "Hm.", ())


def test_calls_and_their_answers_are_taken_back_in_ollama_s_words(served: Served) -> None:
    call = {"function": {"name": "weather", "arguments": {"place": "Oslo"}}}
    messages = [
        USER,
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call, call]},
        {"role": "tool", "tool_name": "weather", "content": "Rain."},
        {"role": "tool", "content": "Snow."},
    ]
    body = CHAT | {"messages": messages, "tools": [WEATHER]}
    assert whole(served, "/api/chat", body)["done"] is True


def test_tools_answers_take_the_ids_of_calls_in_order() -> None:
    from reader_edge.server.ollama.bodies import OllamaCall, OllamaFunction, OllamaMessage, to_messages

    def call(name: str) -> OllamaCall:
        return OllamaCall(function=OllamaFunction(name=name))

    output = to_messages(
        [
            OllamaMessage(role="assistant", tool_calls=(call("a"), call("b"), call("a"))),
            OllamaMessage(role="tool", tool_name="b", content="1"),
            OllamaMessage(role="tool", tool_name="a", content="2"),
            OllamaMessage(role="tool", content="3"),
        ]
    )
    ids = [each["id"] for each in output[0]["tool_calls"]]
    assert len(set(ids)) == 3
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert [each["tool_call_id"] for each in output[1:]] == [ids[1], ids[0], ids[2]]
    assert [each["name"] for each in output[1:]] == ["b", "a", "a"]


def test_answers_of_tools_take_the_calls_that_they_name() -> None:
    calls_left = OpenCalls()
    for call_id, name in [("1", "a"), ("2", "b"), ("3", "a"), ("4", "a")]:
        calls_left.add(call_id, name)
    assert calls_left.take("3", None) == ("3", "a")
    assert calls_left.take(None, "a") == ("1", "a")
    assert calls_left.take(None, "a") == ("4", "a")
    assert calls_left.take("9", "b") is None
    assert calls_left.take(None, "unknown") == ("2", "b")
    assert calls_left.take(None, None) is None


def test_an_answer_goes_on_with_what_the_assistant_wrote_last(served: Served) -> None:
    messages = [USER, {"role": "assistant", "content": "The tar"}]
    output = whole(served, "/api/chat", CHAT | {"messages": messages})["message"]["content"]
    sent = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 40}
    openai = served.post("/v1/chat/completions", sent | {"continue_final_message": True}).json()
    assert output == openai["choices"][0]["message"]["content"]
    assert output != served.post("/v1/chat/completions", sent).json()["choices"][0]["message"]["content"]


def test_names_with_ollama_s_tag_are_known_on_openai_s_paths(served: Served) -> None:
    sent = {"messages": [USER], "max_tokens": 1}
    assert served.post("/v1/chat/completions", sent | {"model": "demo:latest"}).status_code == 200
    assert served.get("/v1/models/demo:latest").json()["id"] == "demo"
    assert served.post("/v1/chat/completions", sent | {"model": "demo:other"}).status_code == 404


def test_log_probabilities_come_beside_each_piece(served: Served) -> None:
    output = whole(served, "/api/generate", PROMPT | {"logprobs": True, "top_logprobs": 2})
    assert len(output["logprobs"]) == output["eval_count"]
    assert all(len(each["top_logprobs"]) == 2 for each in output["logprobs"])
    assert "".join(each["token"] for each in output["logprobs"]) == output["response"]


def test_who_asks_nothing_is_shown_that_the_model_is_here(served: Served) -> None:
    assert whole(served, "/api/generate", {"model": "demo"})["done_reason"] == "load"
    assert whole(served, "/api/chat", {"model": "demo", "messages": []})["message"]["content"] == ""
    unloading = served.post("/api/generate", {"model": "demo", "keep_alive": 0}).json()
    assert (unloading["done"], unloading["done_reason"]) == (True, "load")  # for it stays


def test_what_the_model_is_and_can_do_is_shown(served: Served) -> None:
    (model,) = served.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] == "demo:latest"
    assert model["size"] > 1_000_000
    assert len(model["digest"]) == 64
    shown = served.post("/api/show", {"model": model["name"]}).json()
    architecture = shown["model_info"]["general.architecture"]
    assert shown["details"]["family"] == architecture
    assert shown["model_info"][f"{architecture}.context_length"] > 0
    assert shown["capabilities"] == ["completion", "tools"]
    assert shown["template"] == CHAT_TEMPLATE
    assert served.get("/api/ps").json()["models"][0]["name"] == "demo:latest"
    assert served.get("/api/version").json()["version"].count(".") == 2
    assert_refused(served.post("/api/show", {"model": "other"}), 404, "not found")


@pytest.mark.parametrize(
    ("name", "changes", "size", "quantization"),
    [
        ("smollm2:135m", {}, "135M", "int8"),
        ("Qwen3-30B-A3B", {"kept_types": {"Q6_K": 3, "Q4_K": 20}}, "30B", "Q4_K"),
        ("mine", {"source_name": "qwen3_0.6b_q4_k_m.gguf", "kept_types": {"Q6_K": 3, "Q4_K": 20}}, "0.6B", "Q4_K_M"),
        ("v2-mb", {"source_name": "x3b"}, "", "int8"),
    ],
)
def test_size_and_type_are_in_ollamas_words_where_names_tell_them(
    chat_engine: Engine, name: str, changes: dict[str, Any], size: str, quantization: str
) -> None:
    package = chat_engine.package
    manifest = replace(package.manifest, precision="int8", **changes)
    model = ServedModel(name, ModelPackage(package.folder, manifest), lambda: AsyncEngine(chat_engine))
    served = Served(AsyncEngine(chat_engine), ServerSettings(name))
    served.app = make_app(ModelPool([model], ServerSettings(name)), ServerSettings(name))
    (shown,) = served.get("/api/tags").json()["models"]
    assert (shown["details"]["parameter_size"], shown["details"]["quantization_level"]) == (size, quantization)

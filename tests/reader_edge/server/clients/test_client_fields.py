"""What clients of other servers send, and see."""

import codecs
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reader_edge_runtime import Engine, GenerationConfig, SamplingConfig
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.http.test_sockets import KEY, MAX_SECONDS, ServerProcess
from tests.reader_edge.server.openai.test_answers import CHAT, events
from tests.reader_edge.server.openai.test_refusals import assert_refused

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")


PROMPT = "# tar \N{SNOWMAN} größer"  # whose tokens are in part pieces of characters
CONFIG = GenerationConfig(max_tokens=8)


def test_a_prompt_is_shown_before_its_completion(served: Served) -> None:
    alone = served.complete(max_tokens=8)["choices"][0]
    shown = served.complete(max_tokens=8, echo=True)["choices"][0]
    assert shown == alone | {"text": "# tar" + alone["text"]}
    token_ids = served.engine.engine.encode_prompt("# tar")
    assert served.complete(prompt=token_ids, max_tokens=8, echo=True)["choices"][0]["text"] == shown["text"]
    body = {"model": "demo", "prompt": "# tar", "temperature": 0, "max_tokens": 8, "echo": True, "stream": True}
    pieces = events(served.post("/v1/completions", body))
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == shown["text"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_prompt_is_shown_with_its_logprobs(served: Served, chat_engine: Engine, is_streamed: bool) -> None:
    config = replace(CONFIG, wants_logprobs=True, num_top_logprobs=2, wants_prompt_logprobs=True)
    expected = chat_engine.generate(PROMPT, config)
    sent = {"prompt": PROMPT, "max_tokens": 8, "echo": True, "logprobs": 2}
    logprobs: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    if is_streamed:
        body = {"model": "demo", "temperature": 0, "stream": True, **sent}
        choices = [event["choices"][0] for event in events(served.post("/v1/completions", body))]
        text = "".join(choice["text"] for choice in choices)
        for choice in choices:
            for name, values in (choice["logprobs"] or {}).items():
                logprobs[name] += values
    else:
        (choice,) = served.complete(**sent)["choices"]
        text, logprobs = choice["text"], choice["logprobs"]
    values = [each and each.logprob for each in expected.prompt_logprobs] + [each.logprob for each in expected.logprobs]
    assert logprobs["token_logprobs"] == values
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert text == PROMPT + expected.text
    assert any(token.startswith("bytes:") for token in logprobs["tokens"])
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        assert token.startswith("bytes:") or text[offset:].startswith(token)


def test_who_asks_for_no_token_gets_the_prompt_alone(served: Served, chat_engine: Engine) -> None:
    answer = served.complete(prompt=PROMPT, max_tokens=0, echo=True, logprobs=1)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert len(choice["logprobs"]["tokens"]) == len(chat_engine.encode_prompt(PROMPT))
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"]
    assert_refused(served.post("/v1/completions", {"model": "demo", "prompt": "a", "max_tokens": 0}), 400)


@pytest.mark.parametrize(
    "end", [{"logit_bias": {"0": 10_000}}, {"stop": "\n"}, {"guided_choice": ["a"]}, {"stop_token_ids": [0, 1, 2]}]
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_nothing_ends_a_prompt_that_is_shown_alone(served: Served, end: dict[str, Any], is_streamed: bool) -> None:
    body = {"model": "demo", "prompt": "# tar", "temperature": 0, "max_tokens": 0, "echo": True} | end
    response = served.post("/v1/completions", body | {"stream": is_streamed})
    (answer,) = events(response) if is_streamed else [response.json()]
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("# tar", "length")


def test_bytes_of_tokens_are_exact_also_for_parts_of_characters(served: Served, chat_engine: Engine) -> None:
    ids = [token_id for token_id in range(400) if not is_utf8(chat_engine.tokenizer.token_bytes(token_id))][:2]
    assert len(ids) == 2
    bias = {str(ids[0]): 10_000}
    fields = {"logprobs": True, "top_logprobs": 3, "logit_bias": bias, "max_tokens": 2}
    content = served.post("/v1/chat/completions", CHAT | fields).json()["choices"][0]["logprobs"]["content"]
    assert [bytes(each["bytes"]) for each in content] == [chat_engine.tokenizer.token_bytes(ids[0])] * 2
    assert all(isinstance(top["bytes"], list) for each in content for top in each["top_logprobs"])


def is_utf8(spelled: bytes) -> bool:
    try:
        return bool(codecs.decode(spelled, "utf-8")) or True
    except UnicodeDecodeError:
        return False


def test_the_token_that_ends_an_answer_has_no_log_probability_and_those_of_a_stop_text_have(served: Served) -> None:
    ended = {"temperature": 0, "logit_bias": {"0": 10_000}, "max_tokens": 4}  # the end of the demo's texts
    body = {"model": "demo", "prompt": "# tar", "logprobs": 1}
    answer = served.post("/v1/completions", body | ended).json()
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["choices"][0]["logprobs"]["tokens"] == answer["choices"][0]["logprobs"]["text_offset"] == []
    chat = CHAT | {"logprobs": True}
    assert served.post("/v1/chat/completions", chat | ended).json()["choices"][0]["logprobs"]["content"] == []
    text = served.post("/v1/chat/completions", chat).json()["choices"][0]["message"]["content"]
    stop = text[5:9]
    choice = served.post("/v1/chat/completions", chat | {"stop": stop}).json()["choices"][0]
    assert choice["message"]["content"] == text[: text.index(stop)]
    spelled = "".join(each["token"] for each in choice["logprobs"]["content"])
    assert spelled.startswith(choice["message"]["content"] + stop)


def test_tokens_stop_an_answer_by_their_ids(served: Served, chat_engine: Engine) -> None:
    whole = chat_engine.generate("# tar", replace(CONFIG, max_tokens=16))
    stop = whole.token_ids[5]
    cut = served.complete(stop_token_ids=[stop])
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["usage"]["completion_tokens"] == whole.token_ids.index(stop) + 1


def test_penalties_are_those_of_the_engine(served: Served, chat_engine: Engine) -> None:
    sampling = SamplingConfig(frequency_penalty=1.5, presence_penalty=-0.5)
    expected = chat_engine.generate("# tar", replace(CONFIG, max_tokens=16, sampling=sampling))
    assert served.complete(frequency_penalty=1.5, presence_penalty=-0.5)["choices"][0]["text"] == expected.text


def test_of_best_of_the_answers_with_the_likeliest_tokens_are_returned(served: Served, chat_engine: Engine) -> None:
    sent = {"temperature": 1.0, "seed": 3, "max_tokens": 12}
    drawn = [
        chat_engine.generate(
            "# tar",
            GenerationConfig(max_tokens=12, is_scored=True, sampling=SamplingConfig(temperature=1.0, seed=seed)),
        )
        for seed in range(3, 8)
    ]
    likeliest = sorted(drawn, key=lambda answer: answer.stats.perplexity or math.inf)
    answer = served.complete(**sent, best_of=5, n=2)
    assert [choice["text"] for choice in answer["choices"]] == [each.text for each in likeliest[:2]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == sum(len(each.token_ids) for each in drawn)


def num_drafted(served: Served) -> float:
    name = "vllm:spec_decode_num_draft_tokens_total "
    lines = served.get("/metrics").text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "# tar", "max_tokens": 40}),
        ("/v1/chat/completions", {"messages": CHAT["messages"], "max_tokens": 40}),
        ("/v1/responses", {"input": "What is tar?", "max_output_tokens": 40}),
        ("/api/generate", {"prompt": "# tar", "raw": True, "stream": False, "options": {"num_predict": 40}}),
    ],
)
def test_an_answer_is_decoded_plainly_where_that_is_requested(
    served: Served, path: str, fields: dict[str, Any]
) -> None:
    texts = []
    for draft in (False, True):
        body: dict[str, Any] = {"model": "demo", **fields}
        choice = {"temperature": 0, "draft": draft}
        body |= {"options": fields["options"] | choice} if "options" in fields else choice
        answer = served.post(path, body).json()
        (output,) = answer.get("choices") or answer.get("output") or [answer["response"]]
        texts.append(output if isinstance(output, str) else output.get("content") or {**output, "id": ""})
        assert (num_drafted(served) > 0) == draft
    assert texts[0] == texts[1]


def test_a_seed_of_minus_one_is_none(served: Served) -> None:
    texts = {served.complete(temperature=1.0, seed=-1, max_tokens=16)["choices"][0]["text"] for _ in range(3)}
    assert len(texts) > 1


def test_every_event_tells_usage_where_it_is_requested(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    pieces = events(served.post("/v1/chat/completions", CHAT | {"stream": True, "stream_options": options}))
    counts = [piece["usage"]["completion_tokens"] for piece in pieces]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == 40


@pytest.mark.parametrize(
    "fields",
    [
        {"user": {"id": "x", "name": "y"}, "metadata": {"a": 1}, "store": True, "service_tier": "auto"},
        {"stream_options": {"include_usage": False}, "response_format": {"type": "text"}, "n": 1, "logprobs": None},
        {"tools": None, "tool_choice": None, "parallel_tool_calls": True, "seed": None, "stop": None},
        {"skip_special_tokens": True, "min_tokens": 0, "length_penalty": 1.0, "use_beam_search": False},
        {"tools": [], "functions": [], "function_call": "none", "modalities": ["text"], "best_of": 1},
        {"chat_id": "x", "session_id": "y", "timings_per_token": True, "cache_prompt": True},
    ],
)
def test_what_clients_send_beside_changes_nothing(served: Served, fields: dict[str, Any]) -> None:
    expected = served.post("/v1/chat/completions", CHAT).json()["choices"]
    response = served.post("/v1/chat/completions", CHAT | fields)
    assert response.status_code == 200, response.text
    assert response.json()["choices"] == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"skip_special_tokens": False},
        {"min_tokens": 5},
        {"length_penalty": 2},
        {"use_beam_search": True},
        {"return_token_ids": True},
        {"best_of": 3, "stream": True},
        {"best_of": 2, "n": 3},
    ],
)
def test_what_would_change_an_answer_is_refused(served: Served, fields: dict[str, Any]) -> None:
    assert_refused(served.post("/v1/chat/completions", CHAT | fields), 400, f"'{next(iter(fields))}' is")


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object", "schema": {"enum": ["a"]}},
        {"type": "json_schema", "schema": {"enum": ["a"]}},
        {"type": "json_schema", "json_schema": {"schema": {"enum": ["a"]}, "name": "x", "description": "y"}},
    ],
)
def test_a_schema_is_followed_wherever_other_servers_have_it(served: Served, form: dict[str, Any]) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    output = served.post("/v1/chat/completions", CHAT | {"response_format": form}).json()
    assert output["choices"][0]["message"]["content"] == '"a"'
    assert served.complete(response_format=form)["choices"][0]["text"] == '"a"'


def test_a_form_without_its_schema_is_refused(served: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True}}
    words = "'response_format.json_schema.schema' is missing, but must be a JSON schema, an object."
    assert_refused(served.post("/v1/chat/completions", CHAT | {"response_format": form}), 400, words)
    text = {"format": {"type": "json_schema", "name": "x"}}
    words = "'text.format.schema' is missing, but must be a JSON schema, an object."
    assert_refused(served.post("/v1/responses", {"model": "demo", "input": "a", "text": text}), 400, words)


def test_clients_of_lm_studio_find_the_model(served: Served) -> None:
    (model,) = served.get("/api/v0/models").json()["data"]
    assert (model["id"], model["state"], model["type"]) == ("demo", "loaded", "llm")
    assert served.get("/api/v0/models/demo").json() == model
    (known,) = served.get("/api/v1/models").json()["models"]
    assert known["loaded_instances"] == [{"id": "demo", "config": {"context_length": model["max_context_length"]}}]


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/v1/models/load", "'demo' is loaded as long as the server runs"),
        ("POST", "/v1/models/unload", "'demo' is loaded as long as the server runs"),
        ("POST", "/api/v1/models/load", "'demo' is loaded as long as the server runs"),
        ("GET", "/slots", "'/metrics' has its figures"),
        ("POST", "/infill", "has no fill-in-the-middle tokens"),
    ],
)
def test_paths_of_other_servers_are_refused(served: Served, method: str, path: str, words: str) -> None:
    response = served.request(method, path, json={} if method == "POST" else None)
    assert_refused(response, response.status_code, words)
    assert response.status_code in (400, 404)


QUESTION = "What is tar?"
SCHEMA: dict[str, Any] = {
    "title": "Entry",
    "description": "An entry.",
    "type": "object",
    "properties": {"kind": {"type": "string", "enum": ["shell", "archive"]}},
    "required": ["kind"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "Entry", "description": "An entry.", "parameters": SCHEMA}}


@pytest.mark.parametrize("uses_responses", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_langchain_chats_streams_calls_and_parses(server: ServerProcess, uses_responses: bool) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="not installed: pip install langchain-openai")
    messages = pytest.importorskip("langchain_core.messages")
    chat = langchain.ChatOpenAI(
        model="demo",
        base_url=server.url,
        api_key=KEY,
        max_tokens=200,
        temperature=0,
        max_retries=0,
        use_responses_api=uses_responses,
    )
    whole = chat.invoke(QUESTION)
    assert whole.text
    assert "".join(piece.text for piece in chat.stream(QUESTION)) == whole.text
    assert whole.usage_metadata["output_tokens"] > 0
    called = chat.bind_tools([TOOL], tool_choice="required", parallel_tool_calls=False).invoke(QUESTION)
    (call,) = called.tool_calls
    assert call["args"]["kind"] in ("shell", "archive")
    output = messages.ToolMessage("It is there.", tool_call_id=call["id"])
    history = [messages.SystemMessage("Be short."), messages.HumanMessage(QUESTION), called, output]
    assert chat.invoke(history).text
    parsed = chat.with_structured_output(SCHEMA, method="json_schema", strict=True).invoke(QUESTION)
    assert parsed["kind"] in ("shell", "archive")


@pytest.mark.filterwarnings("ignore")
def test_litellm_chats_streams_calls_and_completes(server: ServerProcess) -> None:
    litellm = pytest.importorskip("litellm", reason="not installed: pip install litellm")
    fields: dict[str, Any] = {"model": "openai/demo", "api_base": server.url, "api_key": KEY, "max_tokens": 100}
    sent = fields | {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    whole = litellm.completion(**sent).choices[0].message.content
    pieces = litellm.completion(**sent, stream=True, stream_options={"include_usage": True})
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == whole
    called = litellm.completion(**sent, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    message = called.choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments)["kind"] in ("shell", "archive")
    output = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It is there."}
    history = [*sent["messages"], message.model_dump(), output]
    assert litellm.completion(**sent | {"messages": history}).choices[0].message.content
    text = litellm.text_completion(**fields | {"model": "text-completion-openai/demo"}, prompt="# tar")
    assert text.choices[0].text


def test_llm_of_the_command_line_chats(server: ServerProcess, tmp_path: Path) -> None:
    pytest.importorskip("llm", reason="not installed: pip install llm")
    model = {"model_id": "demo", "model_name": "demo", "api_base": server.url, "api_key_name": "demo"}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))
    (tmp_path / "keys.json").write_text(json.dumps({"demo": KEY}))
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "llm", "-m", "demo", "-o", "max_tokens", "20", QUESTION]
    for further in ([], ["--no-stream"], ["-s", "Be short."]):
        sent = [*command, *further]
        done = subprocess.run(sent, capture_output=True, text=True, env=environment, timeout=MAX_SECONDS)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()

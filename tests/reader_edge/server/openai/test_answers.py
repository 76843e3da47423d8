"""Answers over HTTP: those of the engine, in OpenAI's form, streamed or whole; misfits are refused at every door."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, GenerationConfig, SamplingConfig
from reader_edge_runtime.errors import ConversationError
from tests.reader_edge.server.conftest import LIMIT_S, Served

GREEDY = GenerationConfig(max_tokens=40)
MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is tar?"}]
CHAT = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 40}


def events(response: httpx.Response) -> list[Any]:
    """What a stream tells, without its end and the heartbeats of a machine that is busy."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *parts, end, rest = response.text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    return [json.loads(part.removeprefix("data: ")) for part in parts if not part.startswith(":")]


def test_a_chat_is_answered_as_the_engine_answers_it(served: Served, chat_engine: Engine) -> None:
    answer = served.post("/v1/chat/completions", CHAT).json()
    expected = chat_engine.generate(MESSAGES, GREEDY)
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": expected.text, "refusal": None, "annotations": []},
        "logprobs": None,
        "finish_reason": expected.finish_reason,
    }
    assert (answer["object"], answer["model"]) == ("chat.completion", "demo")
    assert answer["id"].startswith("chatcmpl-")
    usage, stats = answer["usage"], expected.stats
    assert usage["prompt_tokens"] == stats.num_prompt_tokens
    assert usage["completion_tokens"] == len(expected.token_ids) == usage["total_tokens"] - usage["prompt_tokens"]
    assert 0 < usage["completion_tokens_details"]["accepted_prediction_tokens"] < len(expected.token_ids)


def test_a_streamed_chat_is_the_whole_one_in_pieces(served: Served) -> None:
    whole = served.post("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}).json()
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2}
    *pieces, last = events(served.post("/v1/chat/completions", CHAT | options))
    choices = [piece["choices"][0] for piece in pieces]
    assert all(piece["object"] == "chat.completion.chunk" and piece["id"] == last["id"] for piece in pieces)
    assert choices[0]["delta"]["role"] == "assistant"
    expected = whole["choices"][0]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == expected["message"]["content"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [expected["finish_reason"]]
    logprobs = [each for choice in choices if choice["logprobs"] for each in choice["logprobs"]["content"]]
    assert logprobs == expected["logprobs"]["content"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert all(piece["usage"] is None for piece in pieces)


def test_contents_in_parts_and_the_developer_s_role_are_understood(served: Served) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "tar?"}]
    other = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": parts}]
    answers = [served.post("/v1/chat/completions", CHAT | {"messages": each}).json() for each in (MESSAGES, other)]
    assert answers[0]["choices"] == answers[1]["choices"]


def test_logprobs_are_those_of_the_tokens(served: Served, chat_engine: Engine) -> None:
    logprobs = served.complete(max_tokens=20, logprobs=3)["choices"][0]["logprobs"]
    expected = chat_engine.generate("# tar", replace(GREEDY, max_tokens=20, wants_logprobs=True, num_top_logprobs=3))
    assert logprobs["token_logprobs"] == [each.logprob for each in expected.logprobs]
    assert "".join(logprobs["tokens"]) == expected.text
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        assert expected.text[offset:].startswith(token)
    assert [max(top.values()) for top in logprobs["top_logprobs"]] == logprobs["token_logprobs"]


def test_several_prompts_and_choices_are_numbered_in_order_and_a_seed_repeats_them(served: Served) -> None:
    fields = {"prompt": ["# tar", "# curl"], "n": 2, "temperature": 1.0, "seed": -5, "max_tokens": 12}
    first, second = served.complete(**fields), served.complete(**fields)
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in first["choices"]]
    assert texts == [choice["text"] for choice in second["choices"]]
    assert len(set(texts)) == 4
    alone = served.complete(prompt="# curl", temperature=1.0, seed=-5, max_tokens=12)
    assert alone["choices"][0]["text"] == texts[2]
    assert first["usage"]["prompt_tokens"] == sum(
        len(served.engine.engine.encode_prompt(p)) for p in ("# tar", "# curl")
    )
    assert served.complete(temperature=1.0)["choices"] != served.complete(temperature=1.0)["choices"]


def test_token_ids_are_a_prompt(served: Served, chat_engine: Engine) -> None:
    token_ids = chat_engine.encode_prompt("# tar")
    assert served.complete(prompt=token_ids)["choices"] == served.complete(prompt=[token_ids])["choices"]
    assert served.complete(prompt=token_ids)["choices"] == served.complete()["choices"]


def test_stops_biases_and_limits_shape_an_answer(served: Served) -> None:
    whole = served.complete(max_tokens=60)["choices"][0]
    assert whole["finish_reason"] == "length"
    stop = whole["text"][20:24]
    cut = served.complete(max_tokens=60, stop=[stop, "never wrote"])["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == (whole["text"][: whole["text"].find(stop)], "stop")
    assert served.complete(max_tokens=60, stop=stop)["choices"][0] == cut
    forced = served.complete(max_tokens=5, logit_bias={"40": 10000})
    assert len(set(forced["choices"][0]["text"])) == 1
    assert served.complete()["usage"]["completion_tokens"] == 16


def test_many_clients_get_what_each_gets_alone(served: Served, chat_engine: Engine, held_out_texts: list[str]) -> None:
    random = np.random.default_rng(1)
    requests = []
    for number in range(24):
        sampling = SamplingConfig(temperature=float(random.choice([0, 0.8])), seed=number)
        config = GenerationConfig(max_tokens=int(random.integers(1, 30)), sampling=sampling)
        requests.append((held_out_texts[number % 5][: int(random.choice([20, 300]))], config))

    async def ask(client: httpx.AsyncClient, number: int, prompt: str, config: GenerationConfig) -> str:
        sampling = config.sampling or SamplingConfig()
        body = {"model": "demo", "prompt": prompt, "max_tokens": config.max_tokens, "seed": sampling.seed}
        body |= {"temperature": sampling.temperature, "stream": number % 2 == 0}
        while True:
            response = await client.post("/v1/completions", json=body)
            if response.status_code != 429:  # they are more than may wait
                break
            await asyncio.sleep(0.05)
        if number % 2:
            return str(response.json()["choices"][0]["text"])
        return "".join(event["choices"][0]["text"] for event in events(response))

    async def ask_all() -> list[str]:
        async with served.client() as client:
            return await asyncio.gather(*[ask(client, number, *each) for number, each in enumerate(requests)])

    answers = asyncio.run(asyncio.wait_for(ask_all(), LIMIT_S))
    assert answers == [chat_engine.generate(*each).text for each in requests]


def test_metrics_count_requests_tokens_and_drafts(served: Served) -> None:
    usage = served.complete(max_tokens=60)["usage"]
    served.post("/v1/completions", {"model": "demo"})
    lines = dict(line.rsplit(" ", 1) for line in served.get("/metrics").text.splitlines() if line[0] != "#")
    assert lines['reader_edge_requests_total{path="/v1/completions",status="200"}'] == "1.0"
    assert lines['reader_edge_requests_total{path="/v1/completions",status="400"}'] == "1.0"
    assert float(lines["reader_edge_tokens_total"]) == 60
    assert float(lines["reader_edge_prompt_tokens_total"]) == usage["prompt_tokens"]
    accepted = usage["completion_tokens_details"]["accepted_prediction_tokens"]
    assert float(lines["vllm:spec_decode_num_accepted_tokens_total"]) == accepted
    by_source = [float(value) for name, value in lines.items() if name.startswith("reader_edge_accepted_tokens_total")]
    assert sum(by_source) == accepted
    assert float(lines["reader_edge_first_token_seconds_count"]) == 1
    assert float(lines["reader_edge_token_seconds_count"]) == 59


def test_models_and_health_are_shown(served: Served) -> None:
    (model,) = served.get("/v1/models").json()["data"]
    assert (model["id"], model["object"]) == ("demo", "model")
    assert served.get("/v1/models/demo").json() == model
    assert served.get("/health").json() == {"status": "ok"}


def test_an_answer_whose_client_has_left_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the server's protocol tells it: nothing more comes but the word that the client has gone."""
    messages = asyncio.run(asyncio.wait_for(_leave_after(served, 3), LIMIT_S))
    assert messages[0]["status"] == 200
    assert not messages[-1].get("more_body") or len(messages) < 100
    lines = dict(line.rsplit(" ", 1) for line in served.get("/metrics").text.splitlines() if line[0] != "#")
    assert float(lines["reader_edge_tokens_total"]) >= 2  # what was decoded of it counts
    for stream in (False, True):
        messages = asyncio.run(asyncio.wait_for(_leave_after(served, 0, stream), LIMIT_S))
        assert all(message.get("status") in (None, 499) for message in messages)


async def _leave_after(served: Served, num_messages: int, is_streamed: bool = True) -> list[dict[str, Any]]:
    """Messages of an answer of 500 tokens to a client that leaves after some of them."""
    body = json.dumps({"model": "demo", "prompt": "# tar", "max_tokens": 500, "stream": is_streamed}).encode()
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    sent: list[dict[str, Any]] = []
    has_left = asyncio.Event()
    requests = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if requests:
            return requests.pop()
        if num_messages:
            await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) >= num_messages:
            has_left.set()

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
    await served.app(scope, receive, send)
    while served.engine.num_running or served.engine.num_waiting:
        await asyncio.sleep(0.01)
    return sent


def test_a_prediction_saves_passes_and_changes_nothing(served: Served, chat_engine: Engine) -> None:
    expected = served.post("/v1/chat/completions", CHAT).json()
    chat_engine.forget()
    output = expected["choices"][0]["message"]["content"]
    for content in (output, [{"type": "text", "text": output[:20]}, {"type": "text", "text": output[20:]}]):
        fields = {"prediction": {"type": "content", "content": content}}
        answer = served.post("/v1/chat/completions", CHAT | fields).json()
        assert answer["choices"] == expected["choices"]
        usage = answer["usage"]["completion_tokens_details"]
        assert usage["accepted_prediction_tokens"] > 30
        chat_engine.forget()


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
MISFITS = [
    ({"role": "user", "content": [{"type": "text", "text": "What is it?"}, PICTURE]}, "messages[0].content"),
    ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ({"role": "pirate", "content": "a"}, "messages[0].role"),
    ({"role": "user", "content": "a", "pictures": ["b"]}, "messages[0].pictures"),
    ({"role": "user"}, "messages[0].content"),
    ({"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, "messages[0]"),
]


@pytest.mark.parametrize(("message", "place"), MISFITS, ids=str)
def test_misfits_are_refused_at_every_door(served: Served, chat_engine: Engine, message: Any, place: str) -> None:
    few = GenerationConfig(max_tokens=2)

    async def ask() -> None:
        async with AsyncEngine(chat_engine) as engine:
            await engine.generate([message], few)

    for door in (
        lambda: chat_engine.generate([message], few),
        lambda: chat_engine.generate_batch([[message]], few),
        lambda: chat_engine.stream([message], few),
        lambda: asyncio.run(ask()),
    ):
        with pytest.raises(ConversationError) as refused:
            door()
        assert refused.value.place.startswith(place)
    strict = Served(served.engine, ServerSettings("demo", refused_fields="unknown"))
    answer = strict.post("/v1/chat/completions", {"model": "demo", "messages": [message]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(place)

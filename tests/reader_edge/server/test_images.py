"""Images of requests become parts of conversations, in each interface's words."""

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from reader_edge.server.api_error import ApiError
from reader_edge.server.ollama.bodies import GenerateBody, OllamaChatBody
from reader_edge.server.openai.chat_completions import ChatBody
from reader_edge.server.openai.responses import ResponsesBody
from reader_edge.server.schema import decode
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Conversation, GenerationConfig
from reader_edge_runtime.errors import ConversationError
from reader_edge_runtime.images.decode import MAX_BYTES
from reader_edge_runtime.text.image_parts import bytes_of_base64, bytes_of_url
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse
from tests.reader_edge.server.conftest import Served
from tests.seeing_engine import picture, png, seeing_engine

DATA = base64.b64encode(b"picture").decode()
URL = f"data:image/png;base64,{DATA}"
IMAGE, TEXT = {"type": "image", "image": b"picture"}, {"type": "text", "text": "What is it?"}


def messages_of(prompt: Any) -> Any:
    assert isinstance(prompt, Conversation)
    return prompt.messages


@pytest.mark.parametrize("url", [URL, {"url": URL}, {"url": URL, "detail": "high"}])
def test_openai_s_parts(url: Any) -> None:
    content = [{"type": "image_url", "image_url": url}, TEXT]
    body = decode({"model": "a", "messages": [{"role": "user", "content": content}]}, ChatBody)
    assert messages_of(body.prompts(ToolUse())[0]) == [{"role": "user", "content": [IMAGE, TEXT]}]


def test_openai_s_items() -> None:
    picture = {"type": "input_image", "image_url": URL, "detail": "auto"}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, picture]},
        {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": [picture]},
    ]
    body = decode({"model": "a", "input": items}, ResponsesBody)
    first, _, last = messages_of(body.prompts(ToolUse())[0])
    assert first == {"role": "user", "content": [TEXT, IMAGE]}
    assert last == {"role": "tool", "content": [IMAGE], "tool_call_id": "1"}


def test_ollama_s_images_stand_before_the_text() -> None:
    expected = [{"role": "user", "content": [IMAGE, IMAGE, TEXT]}]
    message = {"role": "user", "content": "What is it?", "images": [DATA] * 2}
    chat = decode({"model": "a", "messages": [message]}, OllamaChatBody)
    assert messages_of(chat.prompt_of(ToolUse(), True)) == expected
    prompt = decode({"model": "a", "prompt": "What is it?", "images": [DATA] * 2}, GenerateBody)
    assert messages_of(prompt.prompt_of(ToolUse(), True)) == expected
    with pytest.raises(ApiError, match="its chat template alone"):
        decode({"model": "a", "prompt": "a", "raw": True, "images": [DATA]}, GenerateBody).prompt_of(ToolUse(), True)


def test_lines_of_base64_are_joined() -> None:
    assert bytes_of_base64(f"{DATA[:4]}\n{DATA[4:]}\n", "images[0]") == b"picture"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a.png",
        "https://example.com/a.png",
        "file:///etc/hostname",
        "/etc/hostname",
        "data:image/png,a",
        "ftp:;base64,YQ==",
        "",
    ],
)
def test_nothing_is_fetched_or_opened(url: str) -> None:
    sentence = r"^'url' is '.*', but nothing is fetched from there: give the image as 'data:image/png;base64,\.\.\.'\.$"
    with pytest.raises(ConversationError, match=sentence) as refused:
        bytes_of_url(url, "url")
    assert refused.value.place == "url"
    assert not url or url not in str(refused.value.public)


@pytest.mark.parametrize("data", ["!", "YQ", "YQ==YQ==", "ä", "YQ== "])
def test_what_is_no_base64_is_refused(data: str) -> None:
    with pytest.raises(ConversationError, match=r"is no base64 \(.*\): give the bytes of an image's file so\.$"):
        bytes_of_base64(data, "images[0]")


def test_more_than_an_image_may_have_is_not_decoded() -> None:
    with pytest.raises(ConversationError, match=r"has \d+ characters, more than an image of 20 MiB: give a smaller"):
        bytes_of_base64("!" * (MAX_BYTES * 3 // 2), "images[0]")


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine = AsyncEngine(seeing_engine(tmp_path_factory.mktemp("seeing"))[0])
    yield Served(engine, ServerSettings("demo"))
    asyncio.run(engine.close(cancels=True))


def _question(kind: str, data: str) -> tuple[str, dict[str, Any]]:
    """A path and a body that ask about one image."""
    url, words = f"data:image/png;base64,{data}", "What is it?"
    source = {"type": "base64", "media_type": "image/png", "data": data}
    part = {"type": "image_url", "image_url": {"url": url}}
    options = {"temperature": 0, "num_predict": 4}
    return {
        "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [part, TEXT]}], "max_tokens": 4}),
        "responses": (
            "/v1/responses",
            {
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": words}],
                    }
                ],
                "max_output_tokens": 4,
            },
        ),
        "messages": (
            "/v1/messages",
            {"messages": [{"role": "user", "content": [{"type": "image", "source": source}, TEXT]}], "max_tokens": 4},
        ),
        "ollama chat": (
            "/api/chat",
            {"messages": [{"role": "user", "content": words, "images": [data]}], "options": options, "stream": False},
        ),
        "ollama": ("/api/generate", {"prompt": words, "images": [data], "options": options, "stream": False}),
    }[kind]


def _prompt_tokens(answer: Any) -> int:
    usage = answer.get("usage") or {"input_tokens": answer["prompt_eval_count"]}
    return int(usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_read_input_tokens", 0))


@pytest.mark.parametrize("kind", ["chat", "responses", "messages", "ollama chat", "ollama"])
def test_every_interface_shows_images_to_the_model(seeing: Served, kind: str) -> None:
    counts = []
    for image in (picture(1), picture(2, 8, 16)):
        data = base64.b64encode(png(image)).decode()
        path, body = _question(kind, data)
        sampling = {} if "options" in body else {"temperature": 0}
        response = seeing.post(path, {"model": "demo", **body, **sampling})
        assert response.status_code == 200, response.text
        expected = seeing.engine.engine.generate("What is it?", GenerationConfig(max_tokens=4), images=[image])
        counts.append(_prompt_tokens(response.json()))
        assert counts[-1] == expected.stats.num_prompt_tokens
        assert json.dumps(expected.text)[1:-1] in response.text
    assert counts[1] - counts[0] == 8 - 6  # tokens of their images


def test_a_response_goes_on_from_one_with_an_image(seeing: Served) -> None:
    served = Served(seeing.engine, ServerSettings("demo", max_kept_responses=2))
    path, body = _question("responses", base64.b64encode(png(picture(1))).decode())
    body |= {"model": "demo", "temperature": 0}
    first = served.post(path, body).json()
    next_one = {"role": "user", "content": "And now?"}
    going_on = served.post(path, {**body, "input": [next_one], "previous_response_id": first["id"]}).json()
    whole = served.post(path, {**body, "input": [*body["input"], *first["output"], next_one]}).json()
    assert going_on["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert going_on["output"][0]["content"] == whole["output"][0]["content"]


def test_an_image_that_is_kept_takes_memory_once() -> None:
    body = decode(
        {"model": "a", "input": [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]},
        ResponsesBody,
    )
    first, second = (messages_of(body.prompts(ToolUse())[0])[0]["content"][0]["image"] for _ in range(2))
    assert first is second


def test_tokens_of_images_are_counted_alone(seeing: Served) -> None:
    data = base64.b64encode(png(picture(1))).decode()
    expected = len(seeing.engine.engine.encode_prompt(Conversation([{"role": "user", "content": [shown(1), TEXT]}])))
    path, body = _question("messages", data)
    counted = seeing.post(f"{path}/count_tokens", {"model": "demo", "messages": body["messages"]})
    assert counted.json() == {"input_tokens": expected}
    path, body = _question("chat", data)
    assert seeing.post("/tokenize", {"messages": body["messages"]}).json()["count"] == expected


def shown(seed: int) -> dict[str, Any]:
    return {"type": "image", "image": picture(seed)}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DATA, "The image is no image of PNG, JPEG, WEBP, GIF or BMP: convert it."),
        (base64.b64encode(png(picture(1))[:60]).decode(), "The image cannot be decoded"),
        (
            base64.b64encode(png(picture(1, 3000, 8))).decode(),
            "too narrow for this model: crop it to at most 200 times",
        ),
    ],
)
def test_what_cannot_be_seen_is_one_sentence(seeing: Served, data: str, words: str) -> None:
    for kind in ("chat", "messages", "ollama"):
        path, body = _question(kind, data)
        response = seeing.post(path, {"model": "demo", **body})
        assert response.status_code == 400
        assert words in response.text


def test_lists_say_that_a_model_sees(seeing: Served) -> None:
    assert seeing.get("/props").json()["modalities"] == {"vision": True, "audio": False}
    assert "vision" in seeing.post("/api/show", {"model": "demo"}).json()["capabilities"]
    assert seeing.get("/api/v0/models").json()["data"][0]["type"] == "vlm"
    assert seeing.get("/api/v1/models").json()["models"][0]["capabilities"] == {"vision": True}


def test_a_photograph_fits_into_a_body(seeing: Served) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (1400, 1300, 3), dtype=np.uint8)
    data = base64.b64encode(png(Image.fromarray(noise))).decode()
    assert len(data) > 6 << 20
    path, body = _question("chat", data)
    response = seeing.post(path, {"model": "demo", **body})
    assert response.status_code == 400
    assert "tokens, but the model's context of 512" in response.text

"""Images of requests become parts of conversations, in each interface's words."""

import base64
from typing import Any

import pytest

from reader_edge.server.api_error import ApiError
from reader_edge.server.images import image_part, part_of_url
from reader_edge.server.ollama.bodies import GenerateBody, OllamaChatBody
from reader_edge.server.openai.chat_completions import ChatBody
from reader_edge.server.openai.responses import ResponsesBody
from reader_edge.server.schema import decode
from reader_edge_runtime import Conversation
from reader_edge_runtime.images.decode import MAX_BYTES
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse

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
    assert image_part(f"{DATA[:4]}\n{DATA[4:]}\n", "images[0]") == IMAGE


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a.png",
        "https://example.com/a.png",
        "file:///etc/hostname",
        "/etc/hostname",
        "data:image/png,a",
        "DATA:image/png;base64",
        "ftp:;base64,YQ==",
        "",
    ],
)
def test_nothing_is_fetched_or_opened(url: str) -> None:
    sentence = r"^'url' is .*, but nothing is fetched from there: give the image as 'data:image/png;base64,\.\.\.'\.$"
    if url.endswith(";base64"):  # of no bytes, which are no image
        assert part_of_url(url, "url") == {"type": "image", "image": b""}
        return
    with pytest.raises(ApiError, match=sentence) as refused:
        part_of_url(url, "url")
    assert (refused.value.status, refused.value.param) == (400, "url")
    assert not url or url not in str(refused.value.public)


@pytest.mark.parametrize("data", ["!", "YQ", "YQ==YQ==", "ä", "YQ== "])
def test_what_is_no_base64_is_refused(data: str) -> None:
    with pytest.raises(ApiError, match=r"which is no base64: give the bytes of an image's file so\.$") as refused:
        image_part(data, "images[0]")
    assert refused.value.code == "invalid_base64"


def test_more_than_an_image_may_have_is_not_decoded() -> None:
    with pytest.raises(ApiError, match=r"has \d+ characters, more than an image of 20 MiB: give a smaller one\.$"):
        image_part("!" * (MAX_BYTES * 4 // 3 + 8), "images[0]")

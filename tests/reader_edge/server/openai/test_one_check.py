"""What no model of texts can be given is refused by its place, whichever door it comes to."""

import asyncio
from typing import Any

import pytest

from reader_edge_runtime import AsyncEngine, Engine, GenerationConfig
from reader_edge_runtime.errors import ConversationError
from tests.reader_edge.server.conftest import Served

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
def test_a_conversation_that_would_lose_something_is_refused_at_every_door(
    served: Served, chat_engine: Engine, message: Any, place: str
) -> None:
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
    answer = served.post("/v1/chat/completions", {"model": "demo", "messages": [message]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(place)

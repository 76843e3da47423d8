"""Links of devices that send what a test gives them, frame by frame."""

from typing import Any

import pytest

from reader_edge.remote import frames
from reader_edge.remote.connection import FrameConnection
from reader_edge.remote.frames import Ask, End, Tokens
from reader_edge.remote.settings import Settings
from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.errors import RemoteError
from tests.reader_edge.server.draft.app_connection import DraftServer

ID = bytes(16)


def greeted(server: DraftServer, **headers: str) -> FrameConnection:
    link = FrameConnection(server.connection(**headers), "http://here")
    link.greet()
    return link


def ask(engine: Engine, mode: int = frames.HINTS, answer_id: bytes = ID, max_tokens: int = 40, **settings: Any) -> Ask:
    config = Settings.of(GenerationConfig(max_tokens=max_tokens, **settings))
    return Ask(answer_id, mode, config.encoded(), engine.encode_prompt("# tar"))


def answer_of(link: FrameConnection) -> list[int]:
    """The tokens up to the answer's end."""
    token_ids: list[int] = []
    while True:
        frame = link.receive(60)
        if isinstance(frame, End):
            return token_ids
        if isinstance(frame, Tokens):
            token_ids += frame.token_ids


def refused(link: FrameConnection) -> str:
    with pytest.raises(RemoteError) as shown:
        answer_of(link)
    assert str(shown.value).count("\n") == 0
    return str(shown.value)

"""Connections of devices, hostile ones among them."""

import asyncio
from typing import Any

import pytest
from msgspec import json, msgpack

from reader_edge.remote import frames
from reader_edge.remote.connection import FrameConnection
from reader_edge.remote.frames import CLIENT_FRAMES, MAX_BYTES, Ask, Cancel, Drafted, Hello, Started, Tokens
from reader_edge.server import draft_endpoint
from reader_edge.server.app import make_app
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.remote_drafts import RemoteTree, TextCheck
from tests.conftest import make_as_new
from tests.reader_edge.server.draft.conftest import (
    ID,
    SETTINGS,
    AppConnection,
    DraftServer,
    answer_of,
    ask,
    greeted,
    refused,
    serving,
)

HELLO = CLIENT_FRAMES.pack(Hello())
TREE = DraftTree.chain([1, 2])


def sent(tag: int, *fields: object) -> bytes:
    """A frame that may be none."""
    return b"RD\x02" + msgpack.encode([tag, *fields])


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (b"", "no frame of drafts"),
        ("text", "no frame of drafts"),
        (b"GET / HTTP/1.1", "no frame of drafts"),
        (b"RD\x01" + HELLO[3:], "speaks version 1 of drafts, this one version 2"),
        (sent(6), "no greeting"),
        (sent(1, bytes(32)), "another one than that of 'demo'"),
        (sent(1, b"short"), "another one than that of 'demo'"),
    ],
)
def test_a_wrong_greeting_is_refused_and_hung_up_on(draft_server: DraftServer, greeting: bytes, words: str) -> None:
    connection = draft_server.connection()
    connection.send(greeting)
    link = FrameConnection(connection, "http://here")
    assert words in refused(link)
    connection.served.result(60)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"RD", "no frame"),
        (b"RD\x02", "truncated"),
        (b"RD\x02\xdd\xff\xff\xff\xff", "truncated"),
        (sent(99), "Invalid value 99"),
        (HELLO, "A frame Hello has no place"),
        (sent(3), "at least length 5"),
        (sent(3, ID, 7, b"{}", []), "int <= 2"),
        (sent(3, b"short", 1, b"{}", []), "bytes of length >= 16"),
        (sent(3, ID, 1, b"{}", [1, 2**31]), "int <= 2147483647"),
        (sent(3, ID, 1, b"{}", [-1]), "int >= 0"),
        (sent(3, ID, 1, b"{}", [5], 5), "at most length 4"),
        (sent(5, ID, 0, bytes(33)), "length <= 32"),
        (b"RD\x02" + bytes(MAX_BYTES), "may have"),
    ],
)
def test_what_is_no_frame_is_refused_and_hung_up_on(draft_server: DraftServer, data: bytes, words: str) -> None:
    link = greeted(draft_server)
    draft_server.connections[-1].send(data)
    assert words in refused(link)
    draft_server.connections[-1].served.result(60)
    assert not len(draft_server.answers)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_tokens": "3"}, "unusable max_tokens ('3'; expected int, got str)"),
        ({"temperature": 1}, "name in it ('temperature'; there is no such field)"),
        ({"sampling": {"seed": -1}}, "seed"),
        ({"sampling": {"logit_bias": {"1": 2}}}, "unusable sampling.logit_bias"),
        ({"sampling": {"logit_bias": [[99999, 2]]}}, "logit_bias names token"),
        ({"grammar": {"kind": "xml", "text": "a"}}, "kind"),
        ({"conversation": {"messages": [5]}}, "messages"),
        ({"conversation": {"tools": []}}, "name in conversation ('tools'"),
        ({"stop": [""]}, "stop"),
    ],
)
def test_a_refusal_ends_no_link(
    draft_server: DraftServer, hinted_engine: Engine, settings: dict[str, Any], words: str
) -> None:
    link = greeted(draft_server)
    link.send(Ask(ID, frames.HINTS, json.encode(settings), hinted_engine.encode_prompt("# tar")))
    assert words in refused(link)
    link.send(ask(hinted_engine, max_tokens=3))
    assert len(answer_of(link)) == 3


def test_absurd_hints_and_trees_change_nothing(draft_server: DraftServer, hinted_engine: Engine) -> None:
    wanted = list(hinted_engine.generate("# tar", GenerationConfig(max_tokens=40)).token_ids)
    prompt = hinted_engine.encode_prompt("# tar")
    make_as_new(hinted_engine)
    absurd = [
        RemoteTree(0, TREE),
        RemoteTree(1, TREE),
        RemoteTree(2**31 - 1, TREE),
        RemoteTree(len(prompt), DraftTree.chain([prompt[-1], *[7] * 200])),
        RemoteTree(len(prompt) + 3, DraftTree.chain([7, 7])),
        RemoteTree(len(prompt), DraftTree.chain([prompt[-1]])),
    ]
    for answer_id, mode in ((b"a" * 16, frames.HINTS), (b"b" * 16, frames.NO_DRAFTS)):
        link = greeted(draft_server)
        link.send(ask(hinted_engine, mode, answer_id))
        for each in absurd:
            link.send(Drafted.of(each, is_hint=True))
            link.send(Drafted.of(each, is_hint=False))  # which no one in this mode takes
        assert answer_of(link) == wanted
        link.send(Drafted.of(absurd[0], is_hint=True))  # late
        link.send(Cancel())
        link.send(ask(hinted_engine, mode, b"z" * 15 + bytes([mode]), max_tokens=3))
        assert answer_of(link) == wanted[:3]


def test_absurd_trees_are_skipped_for_one_that_fits(draft_server: DraftServer, hinted_engine: Engine) -> None:
    wanted = list(hinted_engine.generate("# tar", GenerationConfig(max_tokens=6)).token_ids)
    text = hinted_engine.encode_prompt("# tar")
    make_as_new(hinted_engine)
    link = greeted(draft_server)
    link.send(ask(hinted_engine, frames.VERIFY, max_tokens=6))
    came: list[int] = []
    while len(came) < 6:
        frame = link.receive(60)
        if not isinstance(frame, Tokens):
            continue
        came += frame.token_ids
        now = [*text, *came]
        right = TextCheck(now).value
        for position, root, check in ((len(now), now[-1], right ^ 1), (len(now) + 1, 5, right), (len(now), 5, right)):
            link.send(Drafted.of(RemoteTree(position, DraftTree.chain([root, 3]), check), is_hint=False))
        link.send(Drafted.of(RemoteTree(len(now), DraftTree.chain([now[-1], 3])), is_hint=True))
        link.send(Drafted.of(RemoteTree(len(now), DraftTree.chain([now[-1], 3]), right), is_hint=False))
    assert came == wanted


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (sent(4, 3, None, [], [], b""), "length >= 1"),
        (sent(4, 3, None, [1, 2], [1], b"\x01"), "behind their parents"),
        (sent(4, 3, None, [1] * 300, [0] * 299, bytes(299)), "length <= 256"),
        (sent(4, 3, None, [1, 60000], [0], b"\x01"), "vocabulary"),
        (sent(4, 3, None, [1, 2, 2], [0, 0], b"\x01\x01"), "repeats its sibling"),
        (sent(4, 3, None, [1, 2], [0], b"\x01\x01"), "other numbers of nodes"),
        (sent(4, 3, 1 << 32, [1, 2], [0], b"\x01"), "int <= 4294967295"),
        (sent(2), "no place within an answer"),
    ],
)
def test_no_draft_ends_the_connection(
    draft_server: DraftServer, hinted_engine: Engine, data: bytes, words: str
) -> None:
    link = greeted(draft_server)
    link.send(ask(hinted_engine, max_tokens=200))
    draft_server.connections[-1].send(data)
    assert words in refused(link)
    draft_server.connections[-1].served.result(60)


@pytest.mark.parametrize("mode", [frames.HINTS, frames.VERIFY])
def test_a_flood_of_drafts_ends_the_connection_and_nothing_else(
    draft_server: DraftServer, hinted_engine: Engine, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_endpoint, "_SPARE_DRAFTS", 2)
    monkeypatch.setattr(draft_endpoint, "_DRAFTS_A_TOKEN", 0)
    link = greeted(draft_server)
    link.send(ask(hinted_engine, mode, max_tokens=200))
    for _ in range(3):
        link.send(Drafted.of(RemoteTree(1, TREE), is_hint=mode == frames.HINTS))
    assert "A device sent 3 drafts, more than a text takes" in refused(link)
    other = greeted(draft_server)
    other.send(ask(hinted_engine, frames.NO_DRAFTS, b"o" * 16, max_tokens=3))
    assert len(answer_of(other)) == 3


def test_a_server_that_shuts_down_says_so(hinted_engine: Engine) -> None:
    make_as_new(hinted_engine)
    with serving(make_app(engine := AsyncEngine(hinted_engine), SETTINGS)) as server:
        link = greeted(server)
        link.send(ask(hinted_engine, frames.VERIFY))
        assert isinstance(link.receive(60), Started)
        asyncio.run_coroutine_threadsafe(engine.close(cancels=True), server.loop).result(60)
        assert "shutting down" in refused(link)


def test_silence_ends_a_connection(draft_server: DraftServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_endpoint, "_GREETING_S", 0.05)
    monkeypatch.setattr(draft_endpoint, "_IDLE_S", 0.05)
    assert "No greeting came" in refused(FrameConnection(draft_server.connection(), "http://here"))
    assert "No request came" in refused(greeted(draft_server))


def test_more_devices_than_may_be_are_refused(draft_server: DraftServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_endpoint, "_MAX_CONNECTIONS", 1)
    greeted(draft_server)
    assert "connected already" in refused(FrameConnection(draft_server.connection(), "http://here"))


def test_who_may_not_ask_gets_no_socket(draft_server: DraftServer, hinted_engine: Engine) -> None:
    def status(server: DraftServer, **headers: str) -> int | None:
        return server.connection(**headers).status

    assert status(draft_server, origin="http://evil.example") == 403
    assert status(draft_server, host="evil.example") == 403
    assert status(draft_server) is None
    key = "k" * 32
    with serving(make_app(AsyncEngine(hinted_engine), ServerSettings("demo", (key.encode(),)))) as server:
        assert status(server) == 401
        assert status(server, authorization="Bearer wrong") == 401
        assert status(server, authorization=f"Bearer {key}") is None


def test_a_device_that_leaves_before_it_is_refused_is_no_fault(draft_server: DraftServer) -> None:
    connection: AppConnection = draft_server.connection()
    connection.send_and_leave(b"nonsense")
    connection.served.result(60)


def test_a_server_that_drafts_nothing_verifies_nothing(demo_folder: Any) -> None:
    engine = Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_drafted=False))
    with serving(make_app(AsyncEngine(engine), SETTINGS)) as server:
        link = greeted(server)
        link.send(ask(engine, frames.VERIFY))
        assert "No drafts are verified here, since it was switched off" in refused(link)
        link.send(ask(engine, max_tokens=5))
        assert len(answer_of(link)) == 5

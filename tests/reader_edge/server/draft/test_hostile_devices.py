"""What devices may not send is refused in one sentence, and changes nobody's answer."""

import asyncio
import time
from typing import Any

import pytest

from reader_edge.remote import frames
from reader_edge.remote.frames import Ask, Resume, frame, packed_numbers, packed_tree
from reader_edge.remote.link import Link
from reader_edge.remote.settings import facts_of, hash_of
from reader_edge.server.app import make_app
from reader_edge.server.draft import draft_endpoint
from reader_edge.server.draft.kept_answers import KeptAnswers
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.device_drafts import DeviceTree, TextCheck
from reader_edge_runtime.errors import RemoteError
from tests.conftest import make_as_new
from tests.reader_edge.server.draft.app_connection import AppConnection, DraftServer, serving
from tests.reader_edge.server.draft.conftest import SETTINGS

ID = bytes(16)


def greeted(server: DraftServer, **headers: str) -> Link:
    link = Link(server.connection(**headers), "http://here")
    link.greet()
    return link


def ask(
    engine: Engine, mode: int = frames.HINTS, answer_id: bytes = ID, max_tokens: int = 40, **settings: Any
) -> bytes:
    facts = facts_of(GenerationConfig(max_tokens=max_tokens)) | settings
    return Ask(answer_id, mode, facts, engine.encode_prompt("# tar")).packed()


def answer_of(link: Link) -> list[int]:
    """The tokens up to the answer's end."""
    token_ids: list[int] = []
    while True:
        kind, reader = link.receive(60)
        if kind == frames.END:
            return token_ids
        if kind == frames.TOKENS:
            token_ids += frames.Tokens.unpacked(reader).token_ids


def refused(link: Link) -> str:
    with pytest.raises(RemoteError) as told:
        answer_of(link)
    assert str(told.value).count("\n") == 0
    return str(told.value)


HELLO = frame(frames.HELLO)
TREE = DraftTree.chain([1, 2])


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (b"", "no frame of drafts"),
        ("text", "no frame of drafts"),
        (b"GET / HTTP/1.1", "no frame of drafts"),
        (b"RD\x09" + HELLO[3:], "speaks version 9 of drafts, this one version 1"),
        (frame(frames.CANCEL), "no greeting"),
        (HELLO + bytes(32), "another one than that of 'demo'"),
        (HELLO + b"short", "another one than that of 'demo'"),
    ],
)
def test_a_wrong_greeting_is_refused_and_hung_up_on(draft_server: DraftServer, greeting: bytes, words: str) -> None:
    connection = draft_server.connection()
    connection.send(greeting)
    link = Link(connection, "http://here")
    assert words in refused(link)
    connection.served.result(60)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"RD\x01", "no frame"),
        (frame(99), "kind 99 has no place"),
        (frame(frames.HELLO), "kind 1 has no place"),
        (frame(frames.ASK), "ends before"),
        (frame(frames.ASK, ID, packed_numbers([7, 0])), "mode 7"),
        (frame(frames.ASK, ID, packed_numbers([1, 2]), b"[]", packed_numbers([1, 5])), "no JSON object"),
        (frame(frames.ASK, ID, packed_numbers([1, 2]), b"{}", packed_numbers([9, 5])), "names 9 tokens"),
        (frame(frames.ASK, ID, packed_numbers([1, 2]), b"{}", packed_numbers([1, 2**31])), "too large"),
        (frame(frames.ASK, ID, packed_numbers([1, 2]), b"{}", packed_numbers([1, 5, 5])), "behind its end"),
        (frame(frames.RESUME, ID, packed_numbers([0]), bytes(33)), "behind its end"),
        (b"RD\x01\x03" + bytes(frames.MAX_BYTES), "may have"),
    ],
)
def test_what_is_no_frame_is_refused_and_hung_up_on(draft_server: DraftServer, sent: bytes, words: str) -> None:
    link = greeted(draft_server)
    link.send(sent)
    assert words in refused(link)
    draft_server.connections[-1].served.result(60)
    assert not len(draft_server.app.state.draft_answers)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_tokens": "3"}, "max_tokens"),
        ({"temperature": 1}, "no setting 'temperature'"),
        ({"sampling": 3}, "must be an object"),
        ({"sampling": {"seed": -1}}, "seed"),
        ({"sampling": {"logit_bias": {"1": 2}}}, "list of pairs"),
        ({"sampling": {"logit_bias": [[[], 2]]}}, "name token ids"),
        ({"sampling": {"logit_bias": [[99999, 2]]}}, "logit_bias names token"),
        ({"grammar": {"kind": "regex", "text": 5}}, "text is 5"),
        ({"grammar": {"kind": "xml", "text": "a"}}, "kind"),
        ({"conversation": {"messages": 5}}, "list of messages"),
        ({"conversation": {"tools": []}}, "no setting 'tools'"),
        ({"stop": [""]}, "stop"),
    ],
)
def test_what_cannot_be_asked_is_refused_and_the_connection_stays(
    draft_server: DraftServer, hinted_engine: Engine, settings: dict[str, Any], words: str
) -> None:
    link = greeted(draft_server)
    link.send(Ask(ID, frames.HINTS, settings, hinted_engine.encode_prompt("# tar")).packed())
    assert words in refused(link)
    link.send(ask(hinted_engine, max_tokens=3))
    assert len(answer_of(link)) == 3


def test_absurd_hints_and_trees_change_nothing(draft_server: DraftServer, hinted_engine: Engine) -> None:
    wanted = list(hinted_engine.generate("# tar", GenerationConfig(max_tokens=40)).token_ids)
    prompt = hinted_engine.encode_prompt("# tar")
    make_as_new(hinted_engine)
    absurd = [
        DeviceTree(0, TREE),
        DeviceTree(1, TREE),
        DeviceTree(2**31 - 1, TREE),
        DeviceTree(len(prompt), DraftTree.chain([prompt[-1], *[7] * 200])),
        DeviceTree(len(prompt) + 3, DraftTree.chain([7, 7])),
        DeviceTree(len(prompt), DraftTree.chain([prompt[-1]])),
    ]
    for answer_id, mode in ((b"a" * 16, frames.HINTS), (b"b" * 16, frames.NO_DRAFTS)):
        link = greeted(draft_server)
        link.send(ask(hinted_engine, mode, answer_id))
        for each in absurd:
            link.send(packed_tree(frames.HINT, each))
            link.send(packed_tree(frames.TREE, each))  # which no one in this mode takes
        assert answer_of(link) == wanted
        link.send(packed_tree(frames.HINT, absurd[0]))  # late
        link.send(frame(frames.CANCEL))
        link.send(ask(hinted_engine, mode, b"z" * 15 + bytes([mode]), max_tokens=3))
        assert answer_of(link) == wanted[:3]


def test_a_lockstep_of_absurd_trees_goes_on_by_the_first_that_fits(
    draft_server: DraftServer, hinted_engine: Engine
) -> None:
    wanted = list(hinted_engine.generate("# tar", GenerationConfig(max_tokens=6)).token_ids)
    text = hinted_engine.encode_prompt("# tar")
    make_as_new(hinted_engine)
    link = greeted(draft_server)
    link.send(ask(hinted_engine, frames.VERIFY, max_tokens=6))
    came: list[int] = []
    while len(came) < 6:
        kind, reader = link.receive(60)
        if kind != frames.TOKENS:
            continue
        came += frames.Tokens.unpacked(reader).token_ids
        now = [*text, *came]
        right = TextCheck(now).value
        for position, root, check in ((len(now), now[-1], right ^ 1), (len(now) + 1, 5, right), (len(now), 5, right)):
            link.send(packed_tree(frames.TREE, DeviceTree(position, DraftTree.chain([root, 3]), check)))
        link.send(packed_tree(frames.HINT, DeviceTree(len(now), DraftTree.chain([now[-1], 3]))))
        link.send(packed_tree(frames.TREE, DeviceTree(len(now), DraftTree.chain([now[-1], 3]), right)))
    assert came == wanted


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (frame(frames.HINT, packed_numbers([3, 0])), "without a root"),
        (frame(frames.HINT, packed_numbers([3, 2, 1, 2, 1]), b"\x01"), "behind their parents"),
        (frame(frames.HINT, packed_numbers([3, 300, *[1] * 300])), "names 300 tokens"),
        (frame(frames.HINT, packed_numbers([3, 2, 1, 60000, 0]), b"\x01"), "vocabulary"),
        (frame(frames.HINT, packed_numbers([3, 3, 1, 2, 2, 0, 0]), b"\x01\x01"), "repeats its sibling"),
        (frame(frames.HINT, packed_numbers([3, 2, 1, 2, 0]), b"\x01\x01"), "behind its end"),
        (frame(frames.TREE, packed_numbers([3]), b"\x01"), "ends before"),
        (frame(frames.FETCH), "no place within an answer"),
    ],
)
def test_what_is_no_draft_ends_the_connection(
    draft_server: DraftServer, hinted_engine: Engine, sent: bytes, words: str
) -> None:
    link = greeted(draft_server)
    link.send(ask(hinted_engine, max_tokens=200))
    link.send(sent)
    assert words in refused(link)
    draft_server.connections[-1].served.result(60)


@pytest.mark.parametrize(("mode", "kind"), [(frames.HINTS, frames.HINT), (frames.VERIFY, frames.TREE)])
def test_a_flood_of_drafts_ends_the_connection_and_nothing_else(
    draft_server: DraftServer, hinted_engine: Engine, mode: int, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_endpoint, "_SPARE_DRAFTS", 2)
    monkeypatch.setattr(draft_endpoint, "_DRAFTS_A_TOKEN", 0)
    link = greeted(draft_server)
    link.send(ask(hinted_engine, mode, max_tokens=200))
    for _ in range(3):
        link.send(packed_tree(kind, DeviceTree(1, TREE)))
    assert "A device sent 3 drafts, more than a text takes" in refused(link)
    other = greeted(draft_server)
    other.send(ask(hinted_engine, frames.NO_DRAFTS, b"o" * 16, max_tokens=3))
    assert len(answer_of(other)) == 3


def test_only_who_knows_id_and_text_takes_an_answer_up(draft_server: DraftServer, hinted_engine: Engine) -> None:
    link = greeted(draft_server)
    link.send(ask(hinted_engine, max_tokens=30))
    wanted = answer_of(link)
    draft_server.connections[-1].cut()
    other = greeted(draft_server)
    for resume, words in (
        (Resume(b"x" * 16, 0, hash_of([])), "not here any more"),
        (Resume(ID, 31, hash_of(wanted)), "another text"),
        (Resume(ID, 3, hash_of([1, 2, 3])), "another text"),
    ):
        other.send(resume.packed())
        assert words in refused(other)
    other.send(ask(hinted_engine))
    assert "of this id already" in refused(other)
    other.send(Resume(ID, 3, hash_of(wanted[:3])).packed())
    assert answer_of(other) == wanted[3:]  # whose end may have been lost, too


def test_who_takes_an_answer_up_takes_it_from_a_connection_that_only_seems_to_live(
    draft_server: DraftServer, hinted_engine: Engine
) -> None:
    link = greeted(draft_server)
    link.send(ask(hinted_engine, frames.VERIFY))  # of which no more than the first token comes
    assert link.receive(60)[0] == frames.STARTED
    assert link.receive(60)[0] == frames.TOKENS
    other = greeted(draft_server)
    other.send(Resume(ID, 0, hash_of([])).packed())
    assert other.receive(60)[0] == frames.STARTED
    assert "goes to another connection, which took it up later" in refused(link)
    link.send(ask(hinted_engine, frames.NO_DRAFTS, b"o" * 16, max_tokens=3))  # as sound as it was
    assert len(answer_of(link)) == 3
    other.send(frame(frames.CANCEL))
    while other.receive(60)[0] != frames.END:
        pass


def settled(server: DraftServer, num: int) -> bool:
    end = time.monotonic() + 60
    while len(server.app.state.draft_answers) != num and time.monotonic() < end:
        time.sleep(0.01)
    return len(server.app.state.draft_answers) == num


def test_answers_of_devices_that_stay_away_are_dropped(hinted_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServerSettings("demo", max_away_s=0.1)
    make_as_new(hinted_engine)
    with serving(make_app(AsyncEngine(hinted_engine), settings)) as server:
        link = greeted(server)
        link.send(ask(hinted_engine, frames.VERIFY, max_tokens=200))
        assert link.receive(60)[0] == frames.STARTED
        server.connections[-1].cut()
        assert settled(server, 0)
    with serving(make_app(AsyncEngine(hinted_engine), SETTINGS)) as server:
        monkeypatch.setattr("reader_edge.server.draft.kept_answers.MAX_KEPT", 2)
        for number in range(4):
            link = greeted(server)
            link.send(ask(hinted_engine, answer_id=bytes([number] * 16), max_tokens=3))
            answer_of(link)
            server.connections[-1].cut()
        assert settled(server, 2)


def test_what_was_asked_and_left_before_it_began_is_dropped_and_can_be_asked_again(
    draft_server: DraftServer, hinted_engine: Engine
) -> None:
    wanted = list(hinted_engine.generate("# tar", GenerationConfig(max_tokens=5)).token_ids)
    make_as_new(hinted_engine)
    with hinted_engine.working():  # nothing is decoded meanwhile
        for number in range(12):  # of 8 that may run or wait
            link = greeted(draft_server)
            link.send(ask(hinted_engine, answer_id=bytes([number] * 16), max_tokens=5))
            assert settled(draft_server, 1)
            draft_server.connections[-1].cut()
            assert settled(draft_server, 0)
    other = greeted(draft_server)
    other.send(Resume(ID, 0, hash_of([])).packed())
    assert "not here any more" in refused(other)
    other.send(ask(hinted_engine, max_tokens=5))
    assert answer_of(other) == wanted


def test_an_answer_that_takes_too_long_is_given_up(hinted_engine: Engine) -> None:
    make_as_new(hinted_engine)
    settings = ServerSettings("demo", max_answer_s=0.2)
    with serving(make_app(AsyncEngine(hinted_engine), settings)) as server:
        link = greeted(server)
        link.send(ask(hinted_engine, frames.VERIFY))
        assert "longer than 0.2 seconds" in refused(link)
        assert settled(server, 0)


def test_a_server_that_shuts_down_says_so(hinted_engine: Engine) -> None:
    make_as_new(hinted_engine)
    with serving(make_app(engine := AsyncEngine(hinted_engine), SETTINGS)) as server:
        link = greeted(server)
        link.send(ask(hinted_engine, frames.VERIFY))
        assert link.receive(60)[0] == frames.STARTED
        asyncio.run_coroutine_threadsafe(engine.close(cancels=True), server.loop).result(60)
        assert "shutting down" in refused(link)


def test_silence_ends_a_connection(draft_server: DraftServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_endpoint, "_GREETING_S", 0.05)
    monkeypatch.setattr(draft_endpoint, "_IDLE_S", 0.05)
    assert "No greeting came" in refused(Link(draft_server.connection(), "http://here"))
    assert "Nothing was asked" in refused(greeted(draft_server))


def test_more_devices_than_may_be_are_refused(draft_server: DraftServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_endpoint, "_MAX_CONNECTIONS", 1)
    greeted(draft_server)
    assert "connected already" in refused(Link(draft_server.connection(), "http://here"))


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


def test_what_is_not_there_can_be_left_and_dropped() -> None:
    answers = KeptAnswers(1.0)
    answers.leave(ID)
    answers.drop(ID)
    assert len(answers) == 0


def test_a_server_that_drafts_nothing_verifies_nothing(demo_folder: Any) -> None:
    engine = Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_drafted=False))
    with serving(make_app(AsyncEngine(engine), SETTINGS)) as server:
        link = greeted(server)
        link.send(ask(engine, frames.VERIFY))
        assert "No drafts are verified here, since it was switched off" in refused(link)
        link.send(ask(engine, max_tokens=5))
        assert len(answer_of(link)) == 5

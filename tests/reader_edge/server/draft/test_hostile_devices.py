"""What devices may not send is refused in one sentence, and changes nobody's answer."""

from typing import Any

import pytest

from reader_edge.remote import frames
from reader_edge.remote.frames import Ask, frame, packed_numbers, packed_tree
from reader_edge.remote.link import Link
from reader_edge.server.draft import draft_endpoint
from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.device_drafts import DeviceTree, TextCheck
from tests.conftest import make_as_new
from tests.reader_edge.server.draft.app_connection import DraftServer
from tests.reader_edge.server.draft.device_links import ID, answer_of, ask, greeted, refused

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

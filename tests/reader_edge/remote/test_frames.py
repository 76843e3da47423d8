"""Frames between a device and its server, and the text that the device drafts from."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader_edge.remote.client_text import HintedText, VerifiedText
from reader_edge.remote.frames import (
    CLIENT_FRAMES,
    MAX_BYTES,
    SERVER_FRAMES,
    Ask,
    Deviation,
    Drafted,
    End,
    Resume,
    Tokens,
)
from reader_edge_runtime import GenerationStats
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.remote_drafts import RemoteDrafts, RemoteTree, TextCheck
from reader_edge_runtime.errors import DraftError, FrameError, ReaderEdgeError

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=50)


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    tree = DraftTree.root(draw(st.integers(0, 2**31 - 1)))
    for _ in range(draw(st.integers(0, 40))):
        parent = draw(st.integers(0, len(tree) - 1))
        share = draw(st.integers(1, 255)) / 255
        tree.add(draw(st.integers(0, 2**31 - 1)), parent, "device", min(share, tree.values[parent]))
    return tree


@given(trees(), st.integers(1, 2**31 - 1), st.integers(0, 2**32 - 1))
def test_trees_come_out_as_they_went_in(tree: DraftTree, position: int, check: int) -> None:
    for is_hint in (True, False):
        sent = RemoteTree(position, tree, 0 if is_hint else check)
        found = CLIENT_FRAMES.unpack(CLIENT_FRAMES.pack(Drafted.of(sent, is_hint)))
        assert isinstance(found, Drafted)
        assert (found.tree(), found.is_hint) == (sent, is_hint)


@given(IDS, st.integers(0, 2**31 - 1), st.binary(min_size=16, max_size=16), st.sampled_from([0, 1, 2]))
def test_other_frames_come_out_as_they_went_in(ids: list[int], number: int, answer_id: bytes, mode: int) -> None:
    for sent in (Ask(answer_id, mode, b"{}", ids), Resume(answer_id, number, bytes(32))):
        assert CLIENT_FRAMES.unpack(CLIENT_FRAMES.pack(sent)) == sent
    assert SERVER_FRAMES.unpack(SERVER_FRAMES.pack(Tokens(number, ids))) == Tokens(number, ids)


def test_statistics_come_out_as_they_went_in() -> None:
    stats = GenerationStats(num_tokens=5, log_probability=-1.5, decode_s=2)
    stats.accepted_by_source["device"] += 3
    stats.steps_by_width[4] += 1
    found = SERVER_FRAMES.unpack(SERVER_FRAMES.pack(End("stop", stats, None)))
    assert isinstance(found, End)
    assert found.stats == stats
    assert isinstance(found.stats.decode_s, float)
    assert found.stats.steps_by_width[5] == 0


def test_words_of_a_server_about_an_answer_are_a_line_without_control_characters() -> None:
    deviation = Deviation("\x1b[31m" + "z" * 9999, {"a\nb": "\x07", "gap": 1.5}, 1, 0, 0.5, 0.0, None)
    found = SERVER_FRAMES.unpack(SERVER_FRAMES.pack(End("stop", GenerationStats(), deviation)))
    assert isinstance(found, End)
    assert found.deviation is not None
    shown = found.deviation.for_users()
    assert shown["rule"] == r"\x1b[31m" + "z" * 489 + "..."
    assert shown["figures"] == {"a b": r"\x07", "gap": 1.5}
    assert shown["nats_per_token"] == 0.5


@pytest.mark.parametrize(
    "changes",
    [
        {"num_tokens": "5"},
        {"num_tokens": True},
        {"decode_s": float("nan")},
        {"steps_by_width": 5},
        {"steps_by_width": {"a": 1}},
        {"steps_by_width": {1: -1}},
        {"accepted_by_source": {"a": 1, 2: 1}},
    ],
)
def test_what_is_no_statistics_is_refused(changes: dict[str, object]) -> None:
    stats = GenerationStats()
    for name, value in changes.items():
        object.__setattr__(stats, name, value)
    end = End("stop", GenerationStats(), None)
    end.stats = stats
    with pytest.raises(FrameError, match="is not what it should be"):
        SERVER_FRAMES.unpack(SERVER_FRAMES.pack(end))


def test_sixteen_nodes_take_about_eighty_bytes() -> None:
    tree = DraftTree.chain(list(range(30_000, 30_016)))
    assert len(CLIENT_FRAMES.pack(Drafted.of(RemoteTree(300, tree, 1), is_hint=False))) < 96


def test_a_request_that_no_frame_holds_is_shown_by_its_size() -> None:
    with pytest.raises(FrameError, match="1048576 at most: shorten the prompt"):
        CLIENT_FRAMES.pack(Ask(bytes(16), 0, b"", [1] * MAX_BYTES))


def test_a_text_is_checked_as_it_grows() -> None:
    check = TextCheck([1, 2])
    assert check.extended([3]).value == TextCheck([1, 2, 3]).value != check.value
    assert check.extended([]).num_tokens == 2


DOCUMENT = list(range(100, 200))


class DocumentDrafter(Drafter):
    """Drafts the document's continuation, as a chain; from 0 on nothing."""

    def __init__(self, source: str = "datastore", value: float = 0.99) -> None:
        self.source, self.value = source, value
        self.error: ReaderEdgeError | None = None
        self.num_drafts = 0

    def begin(self, context: RequestContext) -> RequestDrafter:
        return RequestDrafter(context)

    def draft(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | ReaderEdgeError]:
        self.num_drafts += 1
        if self.error is not None:
            return [self.error]
        [sent] = draft_requests
        last = sent.request.token_ids[-1]
        tree = DraftTree.root(last)
        rest = DOCUMENT[DOCUMENT.index(last) + 1 :] if last in DOCUMENT else []
        for node, token_id in enumerate(rest[: min(sent.max_nodes - 1, sent.max_depth)]):
            tree.add(token_id, node, self.source, self.value ** (node + 1))
        return [tree]


def opened(frame: Drafted) -> RemoteTree:
    return frame.tree()


def test_a_hint_goes_out_once_and_again_when_it_runs_out() -> None:
    text = HintedText(DocumentDrafter(), [1, *DOCUMENT[:5]])
    [first] = text.frames()
    assert opened(first).position == 6
    assert opened(first).tree.token_ids == DOCUMENT[4:]
    num_sent = 0
    for token_id in DOCUMENT[5:-1]:
        text.token_ids.append(token_id)
        num_sent += len(text.frames())
    assert num_sent == 0  # the document has no more
    text.token_ids[-1:] = [7, 150]  # elsewhere in it
    assert [opened(data).tree.token_ids[1] for data in text.frames()] == [151]
    text.lost()
    assert len(text.frames()) == 1
    text.finish()


def test_a_long_document_is_hinted_at_as_it_comes() -> None:
    drafter = DocumentDrafter(value=0.95)
    text = HintedText(drafter, [1, *DOCUMENT[:2]])
    depths = []
    for token_id in DOCUMENT[2:90]:
        depths += [len(opened(data).tree) for data in text.frames()]
        text.token_ids.append(token_id)
    assert 1 < len(depths) < 12
    assert max(depths) > 60  # nodes below the least value are left out
    assert min(depths) > 10


@pytest.mark.parametrize("drafter", [DocumentDrafter("context"), DocumentDrafter(value=0.1)])
def test_what_the_server_knows_and_what_is_unlikely_stays_here(drafter: DocumentDrafter) -> None:
    assert HintedText(drafter, [1, *DOCUMENT[:5]]).frames() == []
    assert HintedText(DocumentDrafter(), [1, 2]).frames() == []


def test_a_drafter_that_fails_is_shown() -> None:
    drafter = DocumentDrafter()
    for error in (DraftError("no"), ReaderEdgeError("no")):
        drafter.error = error
        with pytest.raises(DraftError, match="no"):
            HintedText(drafter, [1]).frames()


def verified(num_ahead: int, pass_s: Sequence[float] = (), drafter: Drafter | None = None) -> VerifiedText:
    return VerifiedText(drafter or DocumentDrafter(), [1, *DOCUMENT[:5]], pass_s, 0.1, num_ahead)


def emitted(device: RemoteDrafts, text: list[int], truth: Sequence[int], data: Sequence[Drafted]) -> list[int]:
    """What a server emits that was sent these frames and whose model says `truth`."""
    for each in data:
        device.leave(opened(each))
    came: list[int] = []
    while device.is_ready([*text, *came]):
        tree = device.take_tree(64)
        node, rest = 0, truth[len(text) + len(came) :]
        for token_id in rest:
            came.append(token_id)
            node = tree.child(node, token_id)
            if node < 0:
                break
    return came


@pytest.mark.parametrize("num_ahead", [0, 1, 3])
def test_trees_go_on_from_each_other_and_a_miss_throws_them_away(num_ahead: int) -> None:
    truth = [1, *DOCUMENT[:60], 7, 7, 7, *DOCUMENT[70:]]
    text = verified(num_ahead)
    assert text.frames() == []  # the server chooses the first token without any tree
    device = RemoteDrafts(is_lockstep=True)
    text.token_ids.append(truth[6])
    num_rounds = 0
    while len(text.token_ids) < len(truth) - 1:
        came = emitted(device, text.token_ids, truth, text.frames())
        assert came, text.token_ids
        text.token_ids += came
        num_rounds += 1
    assert text.token_ids[: len(truth)] == truth[: len(text.token_ids)]
    assert num_rounds < {0: 15, 1: 9, 3: 7}[num_ahead]


def test_what_is_on_its_way_is_not_sent_again_but_after_a_loss() -> None:
    text = verified(1)
    text.token_ids.append(DOCUMENT[5])
    first = text.frames()
    assert len(first) == 2
    assert text.frames() == []
    text.lost()
    assert text.frames() == first


def test_trees_are_as_wide_as_the_way_and_the_passes_make_them_pay() -> None:
    widths = []
    for pass_s in ([0.01 * n for n in range(1, 65)], [2.0 * n for n in range(1, 65)], [0.01] * 64):
        text = verified(0, pass_s, DocumentDrafter(value=0.9))
        text.token_ids.append(DOCUMENT[5])
        widths.append(len(opened(text.frames()[0]).tree))
    assert widths[1] == 1 < widths[0] < widths[2]


def test_where_nothing_is_drafted_the_root_alone_is_sent() -> None:
    text = VerifiedText(DocumentDrafter(), [1], [], 0.1, 3)
    text.token_ids.append(2)
    [data] = text.frames()
    assert opened(data).tree.token_ids == [2]

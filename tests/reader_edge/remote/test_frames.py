"""Frames come out as they went in, and what is none is refused before anything is made of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader_edge.remote.frames import DEVICE_FRAMES, MAX_BYTES, SERVER_FRAMES, Ask, Drafted, End, Resume, Tokens
from reader_edge_runtime import GenerationStats
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.device_drafts import DeviceTree, TextCheck
from reader_edge_runtime.errors import FrameError

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
        sent = DeviceTree(position, tree, 0 if is_hint else check)
        found = DEVICE_FRAMES.unpack(DEVICE_FRAMES.pack(Drafted.of(sent, is_hint)))
        assert isinstance(found, Drafted)
        assert (found.tree(), found.is_hint) == (sent, is_hint)


@given(IDS, st.integers(0, 2**31 - 1), st.binary(min_size=16, max_size=16), st.sampled_from([0, 1, 2]))
def test_other_frames_come_out_as_they_went_in(ids: list[int], number: int, answer_id: bytes, mode: int) -> None:
    for sent in (Ask(answer_id, mode, b"{}", ids), Resume(answer_id, number, bytes(32))):
        assert DEVICE_FRAMES.unpack(DEVICE_FRAMES.pack(sent)) == sent
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
    assert len(DEVICE_FRAMES.pack(Drafted.of(DeviceTree(300, tree, 1), is_hint=False))) < 96


def test_a_request_that_no_frame_holds_is_shown_by_its_size() -> None:
    with pytest.raises(FrameError, match="1048576 at most: shorten the prompt"):
        DEVICE_FRAMES.pack(Ask(bytes(16), 0, b"", [1] * MAX_BYTES))


def test_a_text_is_checked_as_it_grows() -> None:
    check = TextCheck([1, 2])
    assert check.extended([3]).value == TextCheck([1, 2, 3]).value != check.value
    assert check.extended([]).num_tokens == 2

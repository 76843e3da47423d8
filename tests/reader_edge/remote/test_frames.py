"""Frames come out as they went in, and what is none is refused before anything is made of it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader_edge.remote import frames
from reader_edge.remote.frames import Ask, FrameError, Resume, Tokens
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.device_drafts import DeviceTree, TextCheck

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
    for kind in (frames.HINT, frames.TREE):
        sent = DeviceTree(position, tree, check if kind == frames.TREE else 0)
        found, reader = frames.opened(frames.packed_tree(kind, sent))
        assert found == kind
        assert frames.unpacked_tree(kind, reader) == sent
        reader.end()


@given(IDS, st.integers(0, 2**31 - 1), st.binary(min_size=16, max_size=16), st.sampled_from([0, 1, 2]))
def test_other_frames_come_out_as_they_went_in(ids: list[int], number: int, answer_id: bytes, mode: int) -> None:
    for sent in (
        Ask(answer_id, mode, {"stop": ["ä"]}, ids),
        Resume(answer_id, number, bytes(32)),
        Tokens(number, ids),
    ):
        _, reader = frames.opened(sent.packed())
        assert type(sent).unpacked(reader) == sent
        reader.end()


def test_sixteen_nodes_take_about_eighty_bytes() -> None:
    tree = DraftTree.chain(list(range(30_000, 30_016)))
    assert len(frames.packed_tree(frames.TREE, DeviceTree(300, tree, 1))) < 96


def test_a_request_that_no_frame_holds_is_told_by_its_size() -> None:
    with pytest.raises(FrameError, match="1048576 at most: shorten the prompt"):
        Ask(bytes(16), 0, {}, [1] * frames.MAX_BYTES).packed()


def test_a_text_is_checked_as_it_grows() -> None:
    check = TextCheck([1, 2])
    assert check.extended([3]).value == TextCheck([1, 2, 3]).value != check.value
    assert check.extended([]).num_tokens == 2


@pytest.mark.parametrize("data", [b"\xff" * 9, b"\x80" * 9, b"\xff\xff\xff\xff\x0f"])
def test_a_number_has_an_end(data: bytes) -> None:
    with pytest.raises(FrameError, match="too large"):
        frames.Reader(data).number()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"[" * 100_000])
def test_facts_are_an_object(data: bytes) -> None:
    with pytest.raises(FrameError, match="no JSON object"):
        frames.Reader(data).facts()


def test_spoilt_frames_are_frames_or_refused() -> None:
    chance = random.Random(1)  # noqa: S311
    whole = [
        frames.packed_tree(frames.TREE, DeviceTree(9, DraftTree.chain([5, 6, 7]), 7)),
        frames.packed_tree(frames.HINT, DeviceTree(9, DraftTree.chain([5, 6, 7]))),
    ]
    num_refused = 0
    for _ in range(3000):
        data = bytearray(chance.choice(whole))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            kind, reader = frames.opened(bytes(data[: chance.randint(0, len(data))]))
            frames.unpacked_tree(kind, reader)
        except FrameError:
            num_refused += 1
    assert 1000 < num_refused < 3000

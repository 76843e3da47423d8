"""Boxes of one pipeline know each other; frames say what was packed into them, and known attacks are refused."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec import msgpack

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, FrameError, ProviderError
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.execution.pipeline.following_stage import MAX_CACHES, FollowingStage
from reader_edge_runtime.execution.pipeline.handshake import (
    FACT_FRAMES,
    HEADERS,
    HELLO,
    Header,
    check_facts,
    check_layers,
    facts_of,
    next_of,
)
from reader_edge_runtime.execution.pipeline.logged_cache import (
    COPY,
    DROP,
    FILL,
    MOVE,
    NEW,
    RESERVE_ADDRESSES,
    RESIZE,
    SWAP,
    CacheStep,
)
from reader_edge_runtime.execution.pipeline.pass_frame import MAX_BYTES as FRAME_BYTES
from reader_edge_runtime.execution.pipeline.pass_frame import MAX_NODES, PassFrame
from reader_edge_runtime.target import Pass
from tests.fuzz.mutation import memory_limit
from tests.stages_here import CLIENT, open_stages

FACTS = {
    "protocol": "1",
    "model": "0a" * 32,
    "stage": "1 of 2",
    "first layer": "0",
    "next layer": "3",
    "reader-edge": "0.2.0",
    "ONNX Runtime": "1.31.1",
    "kernels": "0123456789abcdef",
    "instruction set": "avx512",
}


@pytest.fixture(scope="module")
def first_stage(split_demo: Callable[[int], Path]) -> HostStage:
    """The first of two, which keeps nothing: caches are its `FollowingStage`'s."""
    return open_stages(split_demo(2))[0]


def test_heads_and_greetings_come_out_as_they_went_in() -> None:
    header = Header(HELLO, CLIENT, (1 << 64) - 1)
    assert HEADERS.unpack(memoryview(HEADERS.pack(header))) == header
    assert FACT_FRAMES.unpack(memoryview(FACT_FRAMES.pack(FACTS))) == FACTS


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no frame of pipelines"),
        (b"RH\x02" + HEADERS.pack(Header(HELLO, CLIENT, 1))[3:], "speaks version 2 of pipelines, this one version 3"),
        (HEADERS.pack(Header(9, CLIENT, 1)), "int <= 5"),
        (HEADERS.pack(Header(HELLO, b"short", 1)), "length >= 16"),
        (HEADERS.pack(Header(HELLO, CLIENT, -1)), "int >= 0"),
    ],
)
def test_a_head_of_another_version_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        HEADERS.unpack(memoryview(data))


@pytest.mark.parametrize(
    "facts", [["next"], {"next": 1}, {"next": "\x1b[2J"}, {"next": "a" * 513}, {"a" * 513: "next"}], ids=str
)
def test_what_is_no_greeting_is_refused(facts: object) -> None:
    with pytest.raises(FrameError, match="is not what it should be"):
        FACT_FRAMES.unpack(FACT_FRAMES.magic + msgpack.encode(facts))
    with pytest.raises(FrameError, match="may have 16384 at most"):
        FACT_FRAMES.unpack(FACT_FRAMES.magic + msgpack.encode({f"fact {n}": "a" * 500 for n in range(40)}))


def test_a_stage_hands_on_to_addresses_alone() -> None:
    assert next_of({"next": "tcp://10.0.0.2:5551"}) == "tcp://10.0.0.2:5551"
    assert next_of({"next": ""}) is next_of({}) is None
    with pytest.raises(FrameError, match="names 'ipc:///etc/passwd' as the next stage"):
        next_of({"next": "ipc:///etc/passwd"})
    with pytest.raises(FrameError, match=r"names 'tcp://\*:5551' as"):
        next_of({"next": "tcp://*:5551"})


@pytest.mark.parametrize("name", ["protocol", "model", "stage", "reader-edge", "ONNX Runtime"])
def test_what_changes_answers_is_refused_by_its_name(name: str) -> None:
    for found, other in (("unknown", {key: FACTS[key] for key in FACTS if key != name}), ("9", FACTS | {name: "9"})):
        with pytest.raises(ProviderError, match=f"At tcp://a:1 is {name} {found}, and here {FACTS[name]}: all boxes"):
            check_facts(other, FACTS, "tcp://a:1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"next layer": "2"}, "The stage here begins with layer 3, where layer 2 is next: all boxes"),
        ({"next layer": "4"}, "The stage here begins with layer 3, where layer 4 is next: all boxes"),
        ({"first layer": "1"}, "The stage at tcp://a:1 begins with layer 1, where layer 0 is next: all boxes"),
        ({"first layer": None}, "The stage at tcp://a:1 begins with layer unknown, where layer 0 is next: all boxes"),
        ({"next layer": None}, "The stage here begins with layer 3, where layer unknown is next: all boxes"),
    ],
)
def test_stages_that_were_cut_at_other_layers_are_refused(changes: dict[str, str | None], words: str) -> None:
    last = FACTS | {"stage": "2 of 2", "first layer": "3", "next layer": "6"}
    check_layers({"tcp://a:1": FACTS}, last)
    found = {key: value for key, value in (FACTS | changes).items() if value is not None}
    with pytest.raises(ProviderError, match=words):
        check_layers({"tcp://a:1": found}, last)


def test_what_may_change_bits_is_reported_and_no_more() -> None:
    assert check_facts(FACTS | {"first layer": "7"}, FACTS, "tcp://a:1") is None
    found = check_facts(FACTS | {"instruction set": "neon"}, FACTS, "tcp://a:1")
    assert found is not None
    assert "The stage at tcp://a:1 runs other kernels (instruction set neon there, avx512 here)" in found


def test_a_stage_knows_what_it_is(split_demo: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    first, last = open_stages(split_demo(2))
    monkeypatch.setattr(metadata, "version", missing)  # a checkout that was never installed
    found, here = facts_of(first), facts_of(last)
    assert (found["stage"], found["first layer"], found["reader-edge"]) == ("1 of 2", "0", "unknown")
    assert FACT_FRAMES.unpack(memoryview(FACT_FRAMES.pack(found))) == found
    assert check_facts(found, {**here, "stage": "1 of 2"}, "tcp://a:1") is None
    check_layers({"tcp://a:1": found}, here)


MAX_BYTES = 512 << 20
TREE = DraftTree([5, 6, 7], [-1, 0, 0], ["", "a", "b"])
STEPS = [CacheStep(NEW, (), (2, 16)), CacheStep(MOVE, (9, 4), (0, 4, 5, 6))]
FRAME = PassFrame(3, STEPS, (9, 4), Pass(0, [TREE, DraftTree.root(9)], [range(3), range(1)]), 1)


def sent(*fields: object) -> bytes:
    """A frame that may be none."""
    return b"RP\x03" + msgpack.encode(fields)


def new_frame(
    *steps: CacheStep,
    lengths: tuple[int, ...] = (0, 0),
    tree: DraftTree = TREE,
    first_slot: int = 0,
    num_before: int = 0,
) -> bytes:
    new = CacheStep(NEW, (), (2, 16))
    wanted = Pass(first_slot, [tree], [range(1)], num_before=num_before)
    return PassFrame(1, [new, *steps], lengths, wanted, 1).packed()


def test_a_frame_comes_out_as_it_went_in() -> None:
    found = PassFrame.unpacked(memoryview(FRAME.packed()))
    assert (found.cache, tuple(found.lengths), found.min_rows, found.wanted.first_slot) == (3, (9, 4), 1, 0)
    assert [(step.kind, tuple(step.lengths), tuple(step.numbers)) for step in found.steps] == STEPS
    assert [(tree.token_ids, tree.parents) for tree in found.wanted.trees] == [([5, 6, 7], [-1, 0, 0]), ([9], [-1])]


def test_a_frame_of_a_second_pass_tells_which_nodes_were_before() -> None:
    frame = PassFrame.unpacked(memoryview(new_frame(num_before=2)))
    assert (frame.wanted.num_before, frame.num_nodes, frame.num_rows) == (2, 1, 3)
    assert frame.wanted.trees[0].token_ids == TREE.token_ids


def test_a_pass_larger_than_a_frame_is_refused_where_it_is_made() -> None:
    chain = DraftTree.chain([1] * (MAX_NODES + 1))
    with pytest.raises(ProviderError, match="lower --max-batch"):
        PassFrame(1, [], (0,), Pass(0, [chain], [range(1)]), 1).packed()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        FRAME.packed()[:-1],
        FRAME.packed() + b"\0",
        sent(1, [], [0], 0, 1, 0, []),
        sent(1, [], [0], 0, 0, 0, [[[5], [-1]]]),
        sent(1, [], [0], 1, 1, 0, [[[5], [-1]]]),
        sent(1, [], [-1], 0, 1, 0, [[[5], [-1]]]),
        sent(1, [[DROP + 1, [0], [0]]], [0], 0, 1, 0, [[[5], [-1]]]),
        sent(1, [[SWAP, [0], [-1, 0]]], [0], 0, 1, 0, [[[5], [-1]]]),
        sent(1, [[SWAP, [0], [1 << 32, 0]]], [0], 0, 1, 0, [[[5], [-1]]]),
        sent(1, [], [0], 0, 60_000, 0, [[[5], [-1]]]),
        sent(1, [], [0], 0, 1, 0, [[[], []]]),
        sent(1, [], [0], 0, 1, 0, [[[5, 6], [-1]]]),
        sent(1, [], [0], 0, 1, 0, [[[5, 6], [-1, -1]]]),
        sent(1, [], [0] * 3, 0, MAX_NODES, 0, [[[5], [-1]]] * 3),
        sent(1, [], [0], 0, 1, 2, [[[5, 6, 7], [-1, 0, 0]], [[5], [-1]]]),
        sent(1, [], [0], 0, 1, 60_000, [[[5] * 60_001, list(range(-1, 60_000))]]),
        b"RP\x03\xdd\xff\xff\xff\xff",
        b"RP\x03" + b"\x91" * 100_000,
        bytes(FRAME_BYTES + 1),
        new_frame(num_before=3),
        new_frame(tree=DraftTree([5, 6], [-1, 1], ["", ""])),
        new_frame(lengths=(0, 17)),
        new_frame(lengths=(0,)),
        new_frame(tree=DraftTree.root(1 << 31)),
        new_frame(CacheStep(SWAP, (0, 0), (0, 2))),
        new_frame(CacheStep(COPY, (0, 0), (2, 0, 1))),
        new_frame(CacheStep(FILL, (0, 0), (0, 17))),
        new_frame(CacheStep(MOVE, (0, 0), (0, 15, 1, 2))),
        new_frame(CacheStep(MOVE, (0, 0), (0, 1, 16))),
        new_frame(CacheStep(RESIZE, (0, 0), (1 << 20, 1 << 20))),
        new_frame(CacheStep(RESERVE_ADDRESSES, (0, 0), (1 << 30,))),
        new_frame(CacheStep(SWAP, (0, 0), ())),
    ],
)
def test_known_attacks_are_refused(data: bytes, first_stage: HostStage) -> None:
    with memory_limit(MAX_BYTES), pytest.raises(FrameError):
        FollowingStage(first_stage).answer(CLIENT, memoryview(data), None)


def test_a_second_pass_beyond_the_context_is_refused(first_stage: HostStage) -> None:
    stage = FollowingStage(first_stage)
    most = stage.stage.manifest.max_context
    new = CacheStep(NEW, (), (1, most))
    for length, is_taken in ((most - 3, True), (most - 2, False)):
        frame = PassFrame(1, [new], (length,), Pass(0, [TREE], [range(2, 3)], num_before=2), 1).packed()
        if is_taken:
            assert stage.answer(CLIENT, memoryview(frame), None).shape == (1, 1, 256)
        else:
            with pytest.raises(FrameError, match="more than the model's context"):
                stage.answer(CLIENT, memoryview(frame), None)


@pytest.mark.long
def test_a_residual_stream_of_another_size_is_refused(split_demo: Callable[[int], Path]) -> None:
    first, second, _ = map(FollowingStage, open_stages(split_demo(3)))
    handed = first.answer(CLIENT, memoryview(new_frame()), None).data.cast("B")
    assert second.answer(CLIENT, memoryview(new_frame()), handed).shape == (1, 3, 256)
    for stage, wrong in ((second, handed[:-4]), (second, None), (first, handed)):
        with pytest.raises(FrameError):
            stage.answer(CLIENT, memoryview(new_frame()), wrong)


def test_a_pass_without_memory_leaves_no_rows(first_stage: HostStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = FollowingStage(first_stage)
    again = PassFrame(1, [], (0, 0), Pass(0, [TREE], [range(1)]), 1).packed()
    stage.answer(CLIENT, memoryview(new_frame()), None)
    with monkeypatch.context() as patch:
        patch.setattr(stage.stage, "hand_on", Mock(side_effect=MemoryError))
        with pytest.raises(ConfigError, match="needs more memory than is free: lower --max-batch"):
            stage.answer(CLIENT, memoryview(again), None)
    with pytest.raises(FrameError, match="a cache that this stage has no rows of"):
        stage.answer(CLIENT, memoryview(again), None)


def test_of_too_many_caches_the_oldest_is_forgotten(first_stage: HostStage) -> None:
    stage = FollowingStage(first_stage)
    new, wanted = [CacheStep(NEW, (), (1, 16))], Pass(0, [TREE], [range(1)])
    for cache in range(MAX_CACHES + 1):
        stage.answer(CLIENT, memoryview(PassFrame(cache, new, (0,), wanted, 1).packed()), None)
    answered = stage.answer(CLIENT, memoryview(PassFrame(1, [], (0,), wanted, 1).packed()), None)
    assert answered.shape == (1, 3, 256)
    with pytest.raises(FrameError, match="a cache that this stage has no rows of"):
        stage.answer(CLIENT, memoryview(PassFrame(0, [], (0,), wanted, 1).packed()), None)

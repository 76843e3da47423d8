"""Boxes of one pipeline know each other: greetings are bounded, and what differs between versions is named."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from msgspec import msgpack

from reader_edge_runtime.errors import FrameError, ProviderError
from reader_edge_runtime.execution.pipeline.handshake import (
    FACT_FRAMES,
    HEADS,
    HELLO,
    Head,
    check_facts,
    check_layers,
    facts_of,
    next_of,
)
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


def test_heads_and_greetings_come_out_as_they_went_in() -> None:
    head = Head(HELLO, CLIENT, (1 << 64) - 1)
    assert HEADS.unpack(memoryview(HEADS.pack(head))) == head
    assert FACT_FRAMES.unpack(memoryview(FACT_FRAMES.pack(FACTS))) == FACTS


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no frame of pipelines"),
        (b"RH\x02" + HEADS.pack(Head(HELLO, CLIENT, 1))[3:], "speaks version 2 of pipelines, this one version 3"),
        (HEADS.pack(Head(9, CLIENT, 1)), "int <= 5"),
        (HEADS.pack(Head(HELLO, b"short", 1)), "length >= 16"),
        (HEADS.pack(Head(HELLO, CLIENT, -1)), "int >= 0"),
    ],
)
def test_a_head_of_another_version_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        HEADS.unpack(memoryview(data))


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

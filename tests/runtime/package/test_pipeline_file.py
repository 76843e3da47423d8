"""pipeline.json and pipeline.key: what was written is read, and anything else is refused in one sentence."""

import json
from pathlib import Path

import pytest

from reader_edge_runtime.errors import PackageError
from reader_edge_runtime.package import pipeline_file
from reader_edge_runtime.package.pipeline_file import (
    KEY_NAME,
    PIPELINE_NAME,
    is_address,
    is_loopback,
    is_to_listen_at,
    new_key,
    read_key,
    read_pipeline,
    write_pipeline,
)
from reader_edge_runtime.package.stage_part import MAX_STAGES
from tests.runtime.untrusted.wrong_fields import assert_each_is_named

ADDRESSES = ["tcp://10.0.0.2:5551", "tcp://[fe80::1]:5551", "tcp://box-3.local:65535"]
FIELDS = {"format": "reader-edge pipeline", "format_version": 1, "stages": ADDRESSES}


def test_addresses_come_back_in_their_order(tmp_path: Path) -> None:
    write_pipeline(tmp_path, ADDRESSES)
    assert read_pipeline(tmp_path) == tuple(ADDRESSES)


def test_a_stage_may_have_spare_boxes_which_no_other_has(tmp_path: Path) -> None:
    write_pipeline(tmp_path, ["tcp://a:1 tcp://b:1", "tcp://c:1"])
    assert read_pipeline(tmp_path) == ("tcp://a:1 tcp://b:1", "tcp://c:1")
    with pytest.raises(PackageError, match="two stages at one address"):
        write_pipeline(tmp_path, ["tcp://a:1 tcp://c:1", "tcp://c:1"])
    with pytest.raises(PackageError, match="has 9 spare addresses, but may have 8"):
        write_pipeline(tmp_path, [" ".join(f"tcp://a:{port}" for port in range(1, 11))])
    for wrong in ("", "tcp://a:1  tcp://b:1", "tcp://a:1,tcp://b:1"):
        with pytest.raises(PackageError, match="is no address of a stage"):
            write_pipeline(tmp_path, [wrong])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{" + b" " * (1 << 16), "more than the 65536 bytes that it may have"),
        (b"{", "is not valid JSON"),
        (b"[]", "is unusable"),
        ({"format": "reader-edge package"}, r"has an unusable format \('reader-edge package'\)"),
        ({"format_version": 2}, r"has an unusable format_version \(2\)"),
        ({"stages": []}, "has an unusable stages"),
        ({"stages": [f"tcp://a:{1 + n}" for n in range(MAX_STAGES)]}, "has an unusable stages"),
        ({"stages": ["ipc:///tmp/socket"]}, "has unusable stages"),
        ({"stages": ["tcp://a:65536"]}, "has unusable stages"),
        ({"stages": ["tcp://*:5551"]}, "has unusable stages"),
        ({"stages": [" ".join(f"tcp://a:{port}" for port in range(1, 2002))]}, "has 2000 spare addresses"),
        ({"stages": ["tcp://a:1", "tcp://b:1", "tcp://a:1"]}, "has two stages at one address"),
    ],
)
def test_another_file_is_refused(content: bytes | dict[str, object], sentence: str, tmp_path: Path) -> None:
    data = content if isinstance(content, bytes) else json.dumps(FIELDS | content).encode()
    (tmp_path / PIPELINE_NAME).write_bytes(data)
    with pytest.raises(PackageError, match=sentence):
        read_pipeline(tmp_path)


def test_every_field_is_named_where_it_is_wrong() -> None:
    assert_each_is_named(pipeline_file._PipelineFile, FIELDS)


def test_nothing_is_written_for_what_is_no_address(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"'tcp://a' is no address of a stage: give tcp://HOST:PORT"):
        write_pipeline(tmp_path, ["tcp://b:1", "tcp://a"])
    assert not list(tmp_path.iterdir())


def test_what_only_this_machine_reaches_is_told_from_the_rest() -> None:
    assert all(map(is_to_listen_at, ["tcp://*:5551", "tcp://10.0.0.2:5551"]))
    assert not any(map(is_to_listen_at, ["tcp://*", "tcp://**:1", "*", 5]))
    alone = ["tcp://127.0.0.1:1", "tcp://localhost:5551", "tcp://[::1]:1"]
    assert all(is_address(each) and is_loopback(each) for each in alone)
    assert not any(map(is_loopback, ["tcp://*:1", "tcp://0.0.0.0:1", "tcp://127.0.0.1.example.org:1", *ADDRESSES]))


def test_keys_are_fresh_and_their_owners_alone(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        new_key(tmp_path / name)
    first, second = (read_key(tmp_path / name / KEY_NAME) for name in "ab")
    assert len(first) == len(second) == 32
    assert first != second
    assert (tmp_path / "a" / KEY_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"0" * 63, b"G" * 64, b"0" * 64 + b" " * 65], ids=len)
def test_another_key_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / KEY_NAME).write_bytes(content)
    (tmp_path / KEY_NAME).chmod(0o600)
    with pytest.raises(PackageError, match=r"is no key of a pipeline: give the pipeline\.key"):
        read_key(tmp_path / KEY_NAME)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    new_key(tmp_path)
    (tmp_path / KEY_NAME).chmod(0o640)
    with pytest.raises(PackageError, match="may be read by others: `chmod 600` it"):
        read_key(tmp_path / KEY_NAME)

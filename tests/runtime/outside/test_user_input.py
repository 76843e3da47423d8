"""A file is read as a whole up to a bound, and refused beyond it."""

from pathlib import Path

import pytest

from reader_edge_runtime.outside.user_input import read_bounded


def test_a_file_within_the_bound_is_read_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345678")
    assert read_bounded(tmp_path / "file", 8) == b"12345678"


def test_a_file_beyond_the_bound_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345678")
    with pytest.raises(OSError, match="split it"):
        read_bounded(tmp_path / "file", 7)


def test_a_device_without_an_end_is_refused() -> None:
    with pytest.raises(OSError, match="more than the 1 MiB"):
        read_bounded(Path("/dev/zero"), 1 << 20)

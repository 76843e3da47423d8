"""A file is read as a whole up to a bound, and refused beyond it; values of any kind are shown, and paths refused."""

import os
from pathlib import Path
from typing import Any

import pytest

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.untrusted.plain_file import is_own
from reader_edge_runtime.untrusted.user_input import given_path, read_bounded, short_repr


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


@pytest.mark.parametrize(("owner", "user", "wanted"), [(7, 7, True), (0, 7, True), (7, 8, False), (7, 0, False)])
def test_a_file_is_ones_own_or_roots(owner: int, user: int, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user, raising=False)
    assert is_own(os.stat_result([0o600, 0, 0, 1, owner, *[0] * 5])) == wanted


def test_whatever_is_given_can_be_shown() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    endless: list[object] = []
    for _ in range(100_000):
        endless = [endless]
    assert short_repr("a" * 100) == "'" + "a" * 79
    assert short_repr(10**5000) == short_repr(endless) == "too long to show"
    assert (short_repr(-(10**19)), short_repr(10**300)) == ("-10000000000000000000", "1e+300")
    assert short_repr(Odd()) == "a Odd that cannot be shown"


@pytest.mark.parametrize("path", [5, "a\0b", "a" * 5000, None])
def test_what_can_be_no_path_is_refused_by_its_name(path: Any, tmp_path: Path) -> None:
    assert given_path(tmp_path / "none", "model") == tmp_path / "none"
    with pytest.raises(ConfigError, match=r"^model is "):
        given_path(path, "model")

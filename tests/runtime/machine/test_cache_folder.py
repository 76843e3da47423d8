"""The user's cache holds code, and what decides how code is used: nobody else writes there."""

import os
import stat
from pathlib import Path

import pytest

from reader_edge_runtime.machine import cache_folder
from reader_edge_runtime.machine.cache_folder import code_fault, keep_own, make_own

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache_folder, "user_cache_path", lambda name: tmp_path / name)
    return tmp_path / "reader-edge"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_kept_is_this_users_alone_whatever_the_umask(root: Path) -> None:
    before = os.umask(0o002)
    try:
        keep_own(root / "widths" / "some.json", b"{}")
    finally:
        os.umask(before)
    assert (mode_of(root), mode_of(root / "widths"), mode_of(root / "widths" / "some.json")) == (0o700, 0o700, 0o600)
    assert code_fault(root / "widths" / "some.json", root) is None
    (root / "widths" / "some.json").chmod(0o666)
    keep_own(root / "widths" / "some.json", b"{}")
    assert mode_of(root / "widths" / "some.json") == 0o600


@pytest.mark.parametrize("place", ["", "iree", "iree/some.vmfb"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_code_that_others_could_have_written_is_refused_in_a_sentence(place: str, mode: int, root: Path) -> None:
    keep_own(root / "iree" / "some.vmfb", b"code")
    (root / place).chmod(mode_of(root / place) | mode)
    fault = code_fault(root / "iree" / "some.vmfb", root)
    assert fault == (
        f"'{root / place}' can be written by its group or others, so no code is taken from there: `chmod go-w` it."
    )


def test_code_of_another_user_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_own(root / "iree" / "some.vmfb", b"code")
    monkeypatch.setattr(os, "getuid", lambda: root.stat().st_uid + 1)
    fault = code_fault(root / "iree" / "some.vmfb", root)
    assert (
        fault == f"'{root / 'iree' / 'some.vmfb'}' belongs to another user, so no code is taken from there: remove it."
    )


def test_what_is_not_there_yet_is_no_fault(root: Path) -> None:
    assert code_fault(root / "iree" / "some.vmfb", root) is None
    make_own(root / "iree", root)
    assert code_fault(root / "iree" / "some.vmfb", root) is None

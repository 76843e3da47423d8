"""Files and values from outside are read up to a bound, and are of their class, or refused in one sentence."""

import os
import re
import sys
import unicodedata
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from msgspec import Meta, Struct

from reader_edge_runtime.errors import ConfigError, UserFileError
from reader_edge_runtime.untrusted.plain_file import is_own
from reader_edge_runtime.untrusted.untrusted_json import Figure, Text, converted, decoded, one_of, read_json
from reader_edge_runtime.untrusted.user_input import given_path, read_bounded, short_repr


class Inner(Struct, forbid_unknown_fields=True):
    size: Annotated[int, Meta(ge=1, le=9)]


class Outer(Struct):
    inner: dict[Text, Inner] = {}
    kind: Annotated[str, one_of("a", "b.c")] = "a"
    figures: tuple[Figure, ...] = ()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "is unusable (expected object, got array)"),
        ({"inner": {"x": {"size": 0}}}, "has an unusable inner['x'].size (0; expected int >= 1)"),
        ({"inner": {"x": {"size": 10**5000}}}, "has an unusable inner['x'].size (too long to show; expected int <= 9)"),
        ({"inner": {"x": {}}}, "has an unusable inner['x'].size (None)"),
        (
            {"inner": {"x": {"size": 1, "\x1b": 2}}},
            r"has an unusable name in inner['x'] ('\x1b'; there is no such field)",
        ),
        ({"inner": {"\x1b": {"size": 1}}}, r"has an unusable name in inner ('\x1b')"),
        ({"inner": {"x": {"size": 1, "` - at `$.inner.y[3]": 2}}}, "is unusable"),
        ({"kind": "bxc"}, "has an unusable kind ('bxc')"),
        ({"figures": [1, 2.5, "3"]}, "has an unusable figures[2] ('3'; expected int | float, got str)"),
        ({"figures": [1 << 53]}, "has an unusable figures[0] (9007199254740992; expected int <= 9007199254740991)"),
    ],
)
def test_what_does_not_fit_is_named_with_what_is_expected(values: object, words: str) -> None:
    with pytest.raises(UserFileError) as caught:
        converted(values, Outer, "'a'", UserFileError, "try again")
    assert str(caught.value) == f"'a' {words}: try again."


@pytest.mark.parametrize("wrong", [0, 1, 499, 998, 999])
def test_the_entry_at_fault_is_found_among_many_whatever_follows_it(wrong: int) -> None:
    entries = {f"n{number}": {"size": 0 if number >= wrong else 1} for number in range(1000)}
    with pytest.raises(UserFileError, match=rf"unusable inner\['n{wrong}'\].size"):
        converted({"inner": entries, "kind": "z"}, Outer, "'a'", UserFileError, "try again")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[" * 100_000, b"\xff", b"\xef\xbb\xbf{}", b"NaN", b"[1e999]", b'["\\ud800"]', b"{} {}", b"1" * 5000],
)
def test_what_is_not_json_is_one_sentence(data: bytes) -> None:
    with pytest.raises(UserFileError, match=r"^'a' is not valid JSON \(.*\): try again\.$") as caught:
        decoded(data, "'a'", UserFileError, "try again")
    assert str(caught.value).isprintable()


def test_a_text_can_be_shown() -> None:
    """But for code points that Unicode has not given away, whose number its versions change."""
    pattern = re.compile(get_args(Text)[1].pattern)
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) != "Cn":
            assert bool(pattern.search(chr(code))) == chr(code).isprintable(), hex(code)


def test_a_file_is_read_as_a_whole_up_to_a_bound(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345678")
    assert read_bounded(tmp_path / "file", 8) == b"12345678"
    (tmp_path / "file").write_bytes(b"12345678")
    with pytest.raises(OSError, match="split it"):
        read_bounded(tmp_path / "file", 7)
    with pytest.raises(OSError, match="more than the 1 MiB"):
        read_bounded(Path("/dev/zero"), 1 << 20)
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserFileError, match=r"file' has more than the 9 bytes that it may have: try again\."):
        read_json(tmp_path / "file", UserFileError, "try again", 9)


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
    assert short_repr("a" * 100) == f"'{'a' * 75}...'"
    assert short_repr("a" * 78) == repr("a" * 78)
    assert short_repr(10**5000) == short_repr(endless) == "too long to show"
    assert (short_repr(-(10**19)), short_repr(10**300)) == ("-10000000000000000000", "1e+300")
    assert short_repr(Odd()) == "a Odd that cannot be shown"


@pytest.mark.parametrize("path", [5, "a\0b", "a" * 5000, None])
def test_what_can_be_no_path_is_refused_by_its_name(path: Any, tmp_path: Path) -> None:
    assert given_path(tmp_path / "none", "model") == tmp_path / "none"
    with pytest.raises(ConfigError, match=r"^model is "):
        given_path(path, "model")

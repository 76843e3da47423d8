"""A workspace is followed as it changes: beside decoding, within bounds, and no longer than it is drafted from."""

import gc
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.drafting.drafter import RequestContext
from reader_edge_runtime.drafting.sources.workspace import watcher
from reader_edge_runtime.drafting.sources.workspace.source import WorkspaceSource
from reader_edge_runtime.text.tokenizer import Tokenizer

THREAD = "reader-edge workspace"
TEXT = "".join(f'def rule_{number}():\n\treturn "{number * 37}"\n' for number in range(6))


@pytest.fixture(scope="module")
def tokenizer(demo_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(demo_folder / "tokenizer.json")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Changes are looked for without a rest; no thread of a test is left behind."""
    monkeypatch.setattr(watcher, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(watcher, "_SHARE", 1.0)
    yield
    gc.collect()
    until(lambda: not threads())


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def holds(source: WorkspaceSource, token_ids: list[int]) -> bool:
    """Whether these tokens stand in the index, one behind the other."""
    tokens: Int32Array = source.index.tokens
    return any(tokens[i : i + len(token_ids)].tolist() == token_ids for i in range(len(tokens)))


def followed(path: Path, tokenizer: Tokenizer) -> WorkspaceSource:
    source = watcher.follow(path, tokenizer)
    assert source.was_read.wait(60)
    return source


def test_a_file_is_known_as_it_is_and_as_json_has_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.py").write_text(TEXT, "utf-8")
    source = followed(tmp_path, tokenizer)
    for form in (TEXT, json.dumps(TEXT)[1:-1]):
        assert holds(source, tokenizer.encode(form, adds_special_tokens=False))


def test_new_changed_and_removed_files_are_followed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    first, second = (tokenizer.encode(TEXT + name, adds_special_tokens=False) for name in ("first", "second"))
    source = followed(tmp_path, tokenizer)
    (tmp_path / "a.py").write_text(TEXT + "first", "utf-8")
    until(lambda: holds(source, first))
    (tmp_path / "a.py").write_text(TEXT + "second", "utf-8")
    until(lambda: holds(source, second) and not holds(source, first))
    (tmp_path / "a.py").unlink()
    until(lambda: not holds(source, second))


def test_nothing_is_read_again_or_indexed_again_where_nothing_changes(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.py").write_text(TEXT, "utf-8")
    source = followed(tmp_path, tokenizer)
    index = source.index
    time.sleep(0.2)
    assert source.index is index


def test_files_that_changed_last_are_kept_where_all_are_too_many(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watcher, "MAX_TOKENS", 10)
    for name, changed in {"old.py": 2000, "older.py": 1000, "new.py": 3000}.items():
        (tmp_path / name).write_text(f"{TEXT}{name}", "utf-8")
        os.utime(tmp_path / name, (changed, changed))
    (tmp_path / "none.bin").write_bytes(b"\0")
    os.utime(tmp_path / "none.bin", (4000, 4000))
    with caplog.at_level(logging.INFO, "reader_edge.workspace"):
        source = followed(tmp_path, tokenizer)
    assert holds(source, tokenizer.encode(f"{TEXT}new.py", adds_special_tokens=False))
    assert not holds(source, tokenizer.encode("older.py", adds_special_tokens=False))
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "Drafting from 1 file of the workspace"
    ]
    assert "1 no text, 2 older" in caplog.text


def test_the_thread_ends_with_its_source(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = followed(tmp_path, tokenizer)
    assert len(threads()) == 1
    del source
    gc.collect()
    assert not threads()


def test_a_large_folder_is_drafted_from_before_all_of_it_is_read(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_FIRST_TOKENS", 10)
    for number in range(3):
        (tmp_path / f"{number}.py").write_text(TEXT, "utf-8")
    names: list[str] = []

    def note(source: WorkspaceSource, name: str, value: object) -> None:
        names.append(name)
        object.__setattr__(source, name, value)

    monkeypatch.setattr(WorkspaceSource, "__setattr__", note)
    followed(tmp_path, tokenizer)
    assert names.count("index") > 2


def test_reading_rests_while_requests_are_answered(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_SHARE_BESIDE", 1e-9)
    source = followed(tmp_path, tokenizer)
    request = source.begin(RequestContext([1]))
    time.sleep(0.05)  # the thread rests by now
    (tmp_path / "a.py").write_text(TEXT, "utf-8")
    time.sleep(0.2)
    assert not holds(source, tokenizer.encode(TEXT, adds_special_tokens=False))
    del request, source  # which wakes it

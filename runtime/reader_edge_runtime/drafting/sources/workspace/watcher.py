"""Keeps a source's index equal to the files of a folder, on a thread that gives way to decoding."""

import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.drafting.sources.workspace.folder import FileStamp, WorkspaceFolder
from reader_edge_runtime.drafting.sources.workspace.index import TextIndex
from reader_edge_runtime.drafting.sources.workspace.source import WorkspaceSource
from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.text.tokenizer import Tokenizer

_LOG = logging.getLogger("reader_edge.workspace")

MAX_TOKENS = 8_000_000  # 16 bytes each
_INTERVAL_S = 1.0
_SHARE = 0.05  # of one core's time, once all files were read
_SHARE_BESIDE = 0.1  # while requests are answered
_PIECE = 1 << 14  # characters that are encoded at once
_FIRST_TOKENS = 50_000  # that are drafted from before all files are read; then twice as many, and so on
_EXIT_WAIT_S = 5.0


class _StoppedError(Exception):
    """Nobody drafts from the folder any more."""


def follow(path: str | os.PathLike[str], tokenizer: Tokenizer) -> WorkspaceSource:
    """A source that drafts from the files of a folder as they are; they are read in the background. Raises ConfigError.

    tokenizer: the model's.
    """
    source = WorkspaceSource()
    source.was_read.clear()
    watcher = _Watcher(WorkspaceFolder(Path(path)), tokenizer, source)
    weakref.finalize(source, watcher.stop)
    watcher.start()
    return source


class _Watcher:
    """Reads a folder for a source that it does not keep alive."""

    def __init__(self, folder: WorkspaceFolder, tokenizer: Tokenizer, source: WorkspaceSource) -> None:
        self._folder, self._tokenizer, self._source = folder, tokenizer, weakref.ref(source)
        self._was_read = source.was_read
        self._texts: dict[str, tuple[FileStamp, list[Int32Array]]] = {}
        self._is_stopped = threading.Event()
        self._began = self._worked_s = 0.0
        self._thread = threading.Thread(target=self._run, name="reader-edge workspace", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Waits for the thread: Python's exit would end it inside native code, which aborts the process."""
        self._is_stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_EXIT_WAIT_S)

    def _run(self) -> None:
        try:
            while True:
                self._began, self._worked_s = time.perf_counter(), 0.0
                self._read()
                self._pace()
                if self._is_stopped.wait(max(_INTERVAL_S, self._worked_s / _SHARE)):
                    return
        except _StoppedError:
            return
        except Exception:
            _LOG.exception("The files of the workspace are no longer followed.")
        finally:
            self._was_read.set()

    def _read(self) -> None:
        """Take in what has changed; the latest files are read first, and those longest unchanged are left out first."""
        found = self._folder.scan(self._pace)
        texts: dict[str, tuple[FileStamp, list[Int32Array]]] = {}
        num_tokens, num_published = 0, _FIRST_TOKENS
        for path in sorted(found, key=found.__getitem__, reverse=True):
            if num_tokens >= MAX_TOKENS:
                break
            known = self._texts.get(path)
            texts[path] = known if known and known[0] == found[path] else (found[path], self._tokens_of(path))
            num_tokens += sum(map(len, texts[path][1]))
            if not self._was_read.is_set() and num_tokens > num_published:
                num_published = 2 * num_tokens
                self._publish(texts)
        is_changed = {path: stamp for path, (stamp, _) in texts.items()} != {
            path: stamp for path, (stamp, _) in self._texts.items()
        }
        self._texts = texts
        if is_changed:
            self._publish(texts)
        if not self._was_read.is_set():
            self._report(len(found) - len(texts), num_tokens)
            self._was_read.set()

    def _publish(self, texts: Mapping[str, tuple[FileStamp, list[Int32Array]]]) -> None:
        index = TextIndex([text for _, few in reversed([*texts.values()]) for text in few])
        if (source := self._source()) is not None:
            source.index = index

    def _tokens_of(self, path: str) -> list[Int32Array]:
        """A file's text as it is, and as it stands in strings of JSON, in which calls of tools have it."""
        text = self._folder.read(path)
        if text is None:
            return []
        raw, quoted = list[int](), list[int]()
        try:
            for piece in _pieces(text):
                for form, token_ids in ((piece, raw), (json.dumps(piece, ensure_ascii=False)[1:-1], quoted)):
                    token_ids += self._tokenizer.encode_batch([form])[0]  # unlike `encode`, it lets other threads go on
                    self._pace()
        except PromptError:
            return []
        return [np.array(raw, np.int32), np.array(quoted, np.int32)]

    def _pace(self) -> None:
        """Rest for as long as the work since the last rest asks for. Raises _StoppedError."""
        worked_s = time.perf_counter() - self._began
        self._worked_s += worked_s
        if (source := self._source()) is None:
            raise _StoppedError
        rest_s = worked_s / _SHARE_BESIDE if source.is_used else 0.0
        del source  # which may go meanwhile
        if self._is_stopped.wait(rest_s):
            raise _StoppedError
        self._began = time.perf_counter()

    def _report(self, num_older: int, num_tokens: int) -> None:
        """Say once what is drafted from, and what is not."""
        num_read = sum(bool(few) for _, few in self._texts.values())
        left_out = dict(self._folder.left_out)
        left_out |= {"no text": len(self._texts) - num_read, f"older, behind {MAX_TOKENS:,} tokens": num_older}
        reasons = ", ".join(f"{num:,} {reason}" for reason, num in left_out.items() if num)
        _LOG.info(
            "Drafting from %d %s of the workspace, %d tokens.%s",
            num_read,
            "file" if num_read == 1 else "files",
            num_tokens,
            f" Left out, besides those that git ignores: {reasons}." if reasons else "",
        )


def _pieces(text: str) -> Iterator[str]:
    """A text in parts that end with a line, where lines are no longer than a part."""
    begin = 0
    while begin < len(text):
        end = min(begin + _PIECE, len(text))
        line_end = text.rfind("\n", begin, end) + 1
        if end < len(text) and line_end > begin:
            end = line_end
        yield text[begin:end]
        begin = end

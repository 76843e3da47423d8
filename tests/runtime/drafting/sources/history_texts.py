"""A history file small enough for tests: its texts appended, read back and rewritten."""

import threading
from pathlib import Path

import numpy as np

from reader_edge_runtime.drafting.sources.history_file import HistoryFile

FINGERPRINT = bytes(range(32))


def history(path: Path, max_tokens: int = 1000, fingerprint: bytes = FINGERPRINT) -> HistoryFile:
    return HistoryFile(path, fingerprint, max_tokens, vocab_size=100)


def append_all(file: HistoryFile, texts: list[list[int]]) -> None:
    for text in texts:
        file.append(np.array(text, np.int32))


def rewritten() -> None:
    """Wait for the threads that rewrite files."""
    for thread in threading.enumerate():
        if thread.name == "reader-edge history":
            thread.join()


def contents(file: HistoryFile) -> list[list[int]]:
    return [text.tolist() for text in file.read()]

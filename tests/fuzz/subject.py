"""A kind of file that is fuzzed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random


@dataclass(frozen=True)
class Subject:
    """A kind of file.

    samples: makes good files' contents, in a folder to work in. read: what a program does with the file at a path;
    it may raise ReaderEdgeError, and nothing else.
    """

    samples: Callable[[Path], list[bytes]]
    spoil: Callable[[bytes, Random], bytes]
    read: Callable[[Path], object]

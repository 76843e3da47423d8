"""Mutates a good input by a seed: the same bad input every time."""

import copy
import json
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

HOSTILE_BYTES = (
    b"",
    b"\x00",
    b"\xff" * 8,
    b"\xed\xa0\x80",
    b"\xe2\x80\xa8",
    b"\x1b[2J",
    b"[" * 2000,
    b"9" * 400,
    b"-1",
)
HOSTILE_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 2**31, 2**32 - 1, 2**63, 2**64, 10**400, float("nan"), float("inf")),
    *("", "\ud800", "\x1b[2J", "../x", "a" * 5000, [], {}, [[]], {"": None}),
)


def mutated(content: bytes, random: Random, num_kept: int = 0) -> bytes:
    """One to four bytes or stretches changed, behind the first `num_kept` bytes."""
    spoilt = bytearray(content[num_kept:])
    for _ in range(random.randint(1, 4)):
        start = random.randint(0, len(spoilt))
        end = min(len(spoilt), start + random.choice((0, 1, 4, 64)))
        match random.randrange(5):
            case 0 if start < len(spoilt):
                spoilt[start] ^= 1 << random.randrange(8)
            case 1:
                del spoilt[start:]
            case 2:
                del spoilt[start:end]
            case 3:
                spoilt[start:start] = spoilt[end : end + 64]
            case _:
                spoilt[start:end] = random.choice(HOSTILE_BYTES)
    return content[:num_kept] + spoilt


def mutated_json(content: bytes, random: Random) -> bytes:
    """JSON with one to three of its values replaced or removed, and now and then no JSON any more."""
    if random.random() < 0.3:
        return mutated(content, random)
    fields = json.loads(content)
    for _ in range(random.randint(1, 3)):
        _spoil(fields, random)
    return json.dumps(fields).encode()


def _spoil(fields: Any, random: Random) -> None:
    while fields:
        key = random.choice(list(fields) if isinstance(fields, dict) else range(len(fields)))
        if isinstance(fields[key], dict | list) and fields[key] and random.random() < 0.8:
            fields = fields[key]
        elif random.random() < 0.2:
            del fields[key]
            return
        else:
            fields[key] = copy.deepcopy(random.choice(HOSTILE_VALUES))
            return


@dataclass(frozen=True)
class Subject:
    """A kind of file.

    samples: makes good files' contents, in a folder to work in. read: what a program does with the file at a path;
    it may raise ReaderEdgeError, and nothing else.
    """

    samples: Callable[[Path], list[bytes]]
    spoil: Callable[[bytes, Random], bytes]
    read: Callable[[Path], object]


@contextmanager
def memory_limit(num_bytes: int) -> Iterator[None]:
    """Let allocations fail beyond `num_bytes` more than now; elsewhere than on Linux there is no such bound."""
    if sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (num_pages * resource.getpagesize() + num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

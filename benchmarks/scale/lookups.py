"""Look-ups in shards of a datastore: in memory, and from a disk whose pages have been dropped from memory."""

import gc
import os
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reader_edge_runtime.arrays import Int64Array
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.datastore_set import DatastoreMatch, DatastoreSet

MAX_LENGTH = 64  # tokens of a text that are looked up


class Shards:
    """Opened shards, each of which is asked by itself. paths: of its files, in order of their names."""

    def __init__(self, folder: Path, is_random: bool = False) -> None:
        """is_random: nothing is read ahead of what a look-up touches."""
        self.paths = sorted(folder.glob("*.ds"))
        self._is_random = is_random
        self._sets: list[DatastoreSet] = []
        self.open()

    def open(self) -> None:
        """Map the files."""
        datastores = [Datastore.open(path) for path in self.paths]
        if self._is_random:
            for each in datastores:
                each.read_single_pages()
        self._sets = [DatastoreSet([each]) for each in datastores]

    def drop(self) -> None:
        """Unmap the files, and have the system forget their pages, so that look-ups read from the disk."""
        self._sets.clear()
        gc.collect()
        for path in self.paths:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def find(self, shard: int, text: Sequence[int]) -> DatastoreMatch:
        """The longest end of a text that occurs in a shard."""
        return self._sets[shard].find(text[-MAX_LENGTH:], MAX_LENGTH)

    def successor(self, shard: int, match: DatastoreMatch) -> int:
        """What followed a match most often; -1 behind none."""
        found = self._sets[shard].successors(match, 1) if match.length else []
        return found[0][0] if found else -1


@dataclass(frozen=True, slots=True)
class Question:
    """A text that no shard holds, what it goes on with, and the shard of its subject."""

    text: list[int]
    next_id: int
    shard: int


def questions(folder: Path, shards: Shards, count: int, seed: int) -> list[Question]:
    """So many, of all subjects alike, drawn by a seed from the texts that were held out."""
    rng = np.random.default_rng(seed)
    held_out = np.load(folder / "held-out.npz")
    texts: list[Int64Array] = [held_out[path.stem] for path in shards.paths]
    drawn = []
    for number in range(count):
        text = texts[number % len(texts)]
        place = int(rng.integers(MAX_LENGTH, len(text)))
        drawn.append(Question(text[place - MAX_LENGTH : place].tolist(), int(text[place]), number % len(texts)))
    return drawn


@dataclass(frozen=True, slots=True)
class LookUps:
    """seconds: of each. faults: pages that had to be read for each."""

    seconds: list[float]
    faults: list[int]

    def percentile_s(self, share: float) -> float:
        return float(np.percentile(self.seconds, share))


def timed(shards: Shards, asked: Iterator[tuple[int, list[int]]]) -> LookUps:
    """Each look-up by itself: a shard's number, and a text."""
    seconds, faults = [], []
    for shard, text in asked:
        before = _pages_read()
        begun = time.perf_counter()
        shards.find(shard, text)
        seconds.append(time.perf_counter() - begun)
        faults.append(_pages_read() - before)
    return LookUps(seconds, faults)


def cold(shards: Shards, drawn: Sequence[Question]) -> LookUps:
    """The first look-up in every shard after all pages were dropped, again and again: a question a round."""
    all_seconds: list[float] = []
    all_faults: list[int] = []
    for question in drawn:
        shards.drop()
        shards.open()
        found = timed(shards, ((shard, question.text) for shard in range(len(shards.paths))))
        all_seconds += found.seconds
        all_faults += found.faults
    return LookUps(all_seconds, all_faults)


def first(shards: Shards, drawn: Sequence[Question], counts: Sequence[int]) -> list[float]:
    """Seconds until so many look-ups in the first shard are done, of its own questions, from dropped pages on."""
    shards.drop()
    shards.open()
    own = [question.text for question in drawn if question.shard == 0]
    begun, seconds = time.perf_counter(), []
    for number in range(1, counts[-1] + 1):
        shards.find(0, own[number % len(own)])
        if number in counts:
            seconds.append(time.perf_counter() - begun)
    return seconds


def warming(shards: Shards, drawn: Sequence[Question], most_s: float) -> list[tuple[float, int]]:
    """(seconds, look-ups so far) at every tenth of the time, of questions put to all shards from dropped pages on."""
    shards.drop()
    shards.open()
    begun, count = time.perf_counter(), 0
    marks: list[tuple[float, int]] = []
    for question in drawn:
        for shard in range(len(shards.paths)):
            shards.find(shard, question.text)
            count += 1
        elapsed_s = time.perf_counter() - begun
        if elapsed_s >= most_s * (len(marks) + 1) / 10:
            marks.append((elapsed_s, count))
        if elapsed_s >= most_s:
            break
    return [*marks, (time.perf_counter() - begun, count)]


def _pages_read() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt

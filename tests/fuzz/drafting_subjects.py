"""The files that drafting reads: past answers, datastores and likely successors."""

import hashlib
import struct
import warnings
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.datastore_set import DatastoreSet
from reader_edge_runtime.drafting.sources.datastore.header import HEADER_BYTES
from reader_edge_runtime.drafting.sources.history_file import HistoryFile
from reader_edge_runtime.drafting.sources.successor_store import SuccessorStore
from reader_edge_runtime.drafting.sources.successor_table import LEARNED, SuccessorTable
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME, file_entry
from reader_edge_runtime.package.model_package import ModelPackage
from tests.fake_target import make_manifest
from tests.fuzz.mutation import mutated
from tests.fuzz.subject import Subject
from tests.runtime.drafting.integrity import check_successors
from tests.runtime.drafting.sources.datastore_reference import FINGERPRINT, NARROW, build
from tests.runtime.drafting.sources.test_successor_store import FINGERPRINT as TABLE_FINGERPRINT
from tests.runtime.drafting.sources.test_successor_store import VOCAB_SIZE, package_with, random_table

DOCUMENTS = [[1, 2, 3, 1, 2, 4], [0, NARROW - 1, 255, 256, 1, 2, 3]]


def _history(path: Path) -> HistoryFile:
    return HistoryFile(path, bytes(range(32)), max_tokens=1000, vocab_size=100)


def _history_samples(folder: Path) -> list[bytes]:
    for length in (1, 30, 500, 500):
        _history(folder / "sample").append(np.arange(length, dtype=np.int32) % 100)
    return [(folder / "sample").read_bytes()]


def _read_history(path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):  # damage is shown that way
        _history(path).read()
    _history(path).append(np.arange(5, dtype=np.int32))


def _read_datastore(path: Path) -> None:
    """Opened without a look at its body, as for decoding: look-ups in any body end."""
    datastore = Datastore.open(path, FINGERPRINT, NARROW)
    together = DatastoreSet([datastore])
    for context in ([1, 2], [255, 256], [NARROW - 1]):
        match = together.find(context, 8)
        together.narrow(match, 3)
        together.successors(match, 8)
    datastore.check_body()


def _spoil_datastore(content: bytes, random: Random) -> bytes:
    """Often behind the header, whose checksum would end the reading at once."""
    return mutated(content, random, random.choice((0, HEADER_BYTES, len(content) // 2)))


def _successors_samples(folder: Path) -> list[bytes]:
    package_with(folder, random_table())
    return [(folder / SUCCESSORS_NAME).read_bytes()]


def arrays_file(content: bytes, table_bytes: int | None = None, magic: bytes = LEARNED.magic) -> bytes:
    """A file of arrays with a checksum that fits: a stranger's is no proof of anything."""
    num_bytes = len(content) if table_bytes is None else table_bytes
    checksum = hashlib.sha256(content).digest()
    return struct.pack("<8sI32s32sI", magic, 1, bytes.fromhex(TABLE_FINGERPRINT), checksum, num_bytes) + content


def _spoil_successors(content: bytes, random: Random) -> bytes:
    (table_bytes,) = struct.unpack_from("<I", content, 76)
    return arrays_file(mutated(content[80:], random, random.choice((0, table_bytes))), table_bytes)


def _read_successors(path: Path) -> None:
    path = path.rename(path.with_name(SUCCESSORS_NAME))
    manifest = replace(make_manifest(), vocab_size=VOCAB_SIZE, top_k=8, files={path.name: file_entry(path)})
    table = SuccessorTable.of_package(ModelPackage(path.parent, manifest), TABLE_FINGERPRINT)
    store = SuccessorStore(16, table)
    check_successors(store)
    roots = DraftTree(list(range(VOCAB_SIZE)), [-1] * VOCAB_SIZE, [""] * VOCAB_SIZE)
    output = np.tile(np.arange(8), (VOCAB_SIZE, 1)), np.zeros((VOCAB_SIZE, 8), np.float32)
    store.learn(ScoredTree(roots, range(VOCAB_SIZE), 0, *output, VOCAB_SIZE), [])
    check_successors(store)


def spoil_arrays(content: bytes, random: Random) -> bytes:
    """A file of arrays, with a checksum that fits."""
    (table_bytes,) = struct.unpack_from("<I", content, 76)
    changed = mutated(content[80:], random, random.choice((0, table_bytes)))
    return content[:44] + hashlib.sha256(changed).digest() + content[76:80] + changed


DRAFTING_SUBJECTS = {
    "successors": Subject(_successors_samples, _spoil_successors, _read_successors),
    "history": Subject(_history_samples, mutated, _read_history),
    "datastore": Subject(
        lambda folder: [build(folder / "sample", DOCUMENTS).path.read_bytes()], _spoil_datastore, _read_datastore
    ),
}

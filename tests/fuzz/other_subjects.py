"""Frames between a device and its server, files of drafting, and files of speculators."""

import hashlib
import struct
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from reader_edge.remote.frames import (
    CLIENT_FRAMES,
    HINTS,
    SERVER_FRAMES,
    Ask,
    Drafted,
    End,
    FromClient,
    FromServer,
    Resume,
    SettingsPart,
    Tokens,
    Welcome,
)
from reader_edge.remote.settings import Settings
from reader_edge_export.sources.source import Source
from reader_edge_export.speculators.formats.assistants import open_assistant
from reader_edge_export.speculators.formats.find import find_speculator
from reader_edge_export.speculators.formats.open_speculator import OpenSpeculator, TargetSizes
from reader_edge_runtime import Conversation, GenerationConfig, GenerationStats, Grammar
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.remote_drafts import RemoteDrafts, RemoteTree, TextCheck
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.datastore_set import DatastoreSet
from reader_edge_runtime.drafting.sources.datastore.header import HEADER_BYTES
from reader_edge_runtime.drafting.sources.history_file import HistoryFile
from reader_edge_runtime.drafting.sources.history_records import pack_record
from reader_edge_runtime.drafting.sources.successor_store import LEARNED, SuccessorStore, SuccessorTable
from reader_edge_runtime.errors import FrameError, ReaderEdgeError
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME, file_entry
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import ASSISTANT
from tests.export.speculators.assistant_folders import write_assistant
from tests.export.speculators.speculator_folders import (
    write_block,
    write_eagle3,
    write_mlp,
    write_mtp,
    write_plain_eagle3,
)
from tests.fake_target import make_manifest
from tests.fuzz.mutation import Subject, mutated, mutated_json
from tests.runtime.drafting.integrity import check_successors
from tests.runtime.drafting.sources.datastore_reference import FINGERPRINT, NARROW, build
from tests.runtime.drafting.sources.test_successor_store import FINGERPRINT as TABLE_FINGERPRINT
from tests.runtime.drafting.sources.test_successor_store import VOCAB_SIZE, package_with, random_table
from tests.tiny_models import tiny_config

_TEXT = [5, 6, 7, 8]
_TREE = DraftTree.chain([8, 9, 10])


def _read(path: Path) -> None:
    data = path.read_bytes()
    try:
        frame = CLIENT_FRAMES.unpack(data)
    except FrameError:
        SERVER_FRAMES.unpack(data)
        return
    if isinstance(frame, Drafted):
        drafted = frame.tree()
        drafted.tree.check(drafted.tree.token_ids[0], 300, len(drafted.tree))
        drafts = RemoteDrafts(not frame.is_hint)
        drafts.leave(drafted)
        drafts.hint(_TEXT, 16)
        if not frame.is_hint and drafts.is_ready(_TEXT):
            drafts.take_tree(16)
    elif isinstance(frame, Ask):
        settings = Settings.decoded(frame.settings)
        settings.config()
        settings.chat()


def _samples(folder: Path) -> list[bytes]:
    config = GenerationConfig(grammar=Grammar("regex", "a"), stop=("b",))
    settings = Settings.of(config, Conversation([{"role": "user", "content": "a"}]))
    check = TextCheck(_TEXT).value
    from_device: tuple[FromClient, ...] = (
        Drafted.of(RemoteTree(4, _TREE), is_hint=True),
        Drafted.of(RemoteTree(4, _TREE, check), is_hint=False),
        Ask(bytes(16), HINTS, settings.encoded(), [1, 2, 300]),
        Resume(bytes(16), 3, bytes(32)),
        SettingsPart(settings.encoded()),
    )
    from_server: tuple[FromServer, ...] = (
        Tokens(3, [1, 2, 300]),
        Welcome("a", bytes(32), 1, 9, 9, (0,), True, "all", (0.1,), {"top_p": 0.5}),
        End("stop", GenerationStats(num_tokens=3), None),
    )
    return [*map(CLIENT_FRAMES.pack, from_device), *map(SERVER_FRAMES.pack, from_server)]


def _spoilt(content: bytes, random: Random) -> bytes:
    """Mostly behind the head, which else is all that is read."""
    head, body = (content[:3], content[3:]) if random.random() < 0.9 else (b"", content)
    return head + mutated(body, random)


DEVICE_SUBJECTS = {"frame": Subject(_samples, _spoilt, _read)}
_CHECKSUM_AT = 112  # in a datastore's header
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


def _spoil_history(content: bytes, random: Random) -> bytes:
    """Often with a text of any ids behind it, whose checksum fits."""
    ids = np.array([random.randrange(-(2**31), 2**31) >> random.randrange(32) for _ in range(40)], np.int32)
    return mutated(content + pack_record(ids), random, random.choice((0, len(content))))


def _spoil_datastore(content: bytes, random: Random) -> bytes:
    """Often behind the header, whose checksum would end the reading at once, or so that this fits."""
    spoilt = mutated(content, random, random.choice((0, HEADER_BYTES, len(content) // 2)))
    if random.random() < 0.5 or len(spoilt) < HEADER_BYTES:
        return spoilt
    checksum = hashlib.sha256(spoilt[:_CHECKSUM_AT]).digest()
    return spoilt[:_CHECKSUM_AT] + checksum.ljust(HEADER_BYTES - _CHECKSUM_AT, b"\0") + spoilt[HEADER_BYTES:]


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
    "history": Subject(_history_samples, _spoil_history, _read_history),
    "datastore": Subject(
        lambda folder: [build(folder / "sample", DOCUMENTS).path.read_bytes()], _spoil_datastore, _read_datastore
    ),
}
_KINDS = ("eagle3", "plain", "mtp", "mlp", "dflash2", "assistant")
_GEMMA = cast(Source, SimpleNamespace(config=tiny_config("gemma4_text"), short_name="tiny"))
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"


def _of_network(name: str, folder: Path) -> list[bytes]:
    """One of each format."""
    _write(folder)
    return [(folder / kind / name).read_bytes() for kind in _KINDS]


def _write(folder: Path) -> None:
    """A good folder of each format."""
    if not (folder / _KINDS[0]).exists():
        write_eagle3(folder / "eagle3", norm_before_fc=True)
        write_plain_eagle3(folder / "plain")
        write_mtp(folder / "mtp", "qwen3_5_text")
        write_mlp(folder / "mlp")
        write_block(folder / "dflash2", conv_kernel_size=2, conv_group_size=16, selector_rank=8, selector_top_k=4)
        write_assistant(folder / "assistant")


def _read_network(name: str, path: Path) -> None:
    """As a part of a folder of each format, whose other file is good. Raises the error of the last one."""
    _write(path.parent)
    refusals: list[ReaderEdgeError] = []
    for kind in _KINDS:
        file = path.parent / kind / name
        good = file.read_bytes()
        file.write_bytes(path.read_bytes())
        try:
            found = find_speculator(file.parent, cast(Any, None))
            if found.format == ASSISTANT:
                open_assistant(found, _GEMMA)
            else:
                OpenSpeculator.of(found, TargetSizes(2, 64, 320))
        except ReaderEdgeError as refusal:
            refusals.append(refusal)
        finally:
            file.write_bytes(good)
    if len(refusals) == len(_KINDS):  # a good file suits one of them
        raise refusals[-1]


def spoil_header(content: bytes, random: Random) -> bytes:
    """Weights themselves may be anything."""
    num_bytes = 8 + int.from_bytes(content[:8], "little")
    header = mutated_json(content[8:num_bytes], random)
    if random.random() < 0.3:
        return mutated(content, random)
    return len(header).to_bytes(8, "little") + header + content[num_bytes:]


SPECULATOR_SUBJECTS = {
    "speculator's config": Subject(partial(_of_network, _CONFIG), mutated_json, partial(_read_network, _CONFIG)),
    "speculator's weights": Subject(partial(_of_network, _WEIGHTS), spoil_header, partial(_read_network, _WEIGHTS)),
}

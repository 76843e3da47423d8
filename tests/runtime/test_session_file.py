"""Files of sessions: what is damaged, foreign or made up is refused in one sentence, and changes nothing."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.decoding import session
from reader_edge_runtime.decoding.session import FORMAT
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import SessionError
from tests.reader_edge.package_copy import PackageCopy


@pytest.fixture
def kept(engine: Engine, tmp_path: Path) -> Path:
    """A session of two texts."""
    engine.generate_batch(["# tar\n\nArchiving", "# git\n"], GenerationConfig(max_tokens=4, ignores_eos=True))
    engine.save_session(tmp_path / "kept")
    return tmp_path / "kept"


def held_by(engine: Engine) -> list[bytes]:
    """All that a session would have."""
    decoder = engine.decoder
    assert isinstance(decoder.drafter, RetrievalDrafter)
    texts = decoder.scheduler.texts()
    rows = [decoder.cache.read_slot(slot, len(text)).rows[0].tobytes() for slot, text in enumerate(texts)]
    return [repr(texts).encode(), *rows, *(array.tobytes() for array in decoder.drafter.state().values())]


def flipped(at: int) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]

    return flip


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda data: b"", "is not a file of a session"),
        (lambda data: b"x" + data[1:], "is not a file of a session"),
        (lambda data: data[:8] + struct.pack("<I", 2) + data[12:], "of this version"),
        (lambda data: data[:12] + bytes(32) + data[44:], "another package"),
        (lambda data: data[:-1], "is damaged"),
        (lambda data: data[: len(data) // 2], "is damaged"),
        (lambda data: data + b"\0", "is damaged"),
        (flipped(1_000_000), "is damaged"),
        (flipped(100_000), "is damaged"),
        (flipped(90), "is damaged"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_in_one_sentence_and_changes_nothing(
    engine: Engine, kept: Path, spoil: Callable[[bytes], bytes], sentence: str
) -> None:
    held = held_by(engine)
    kept.write_bytes(spoil(kept.read_bytes()))
    with pytest.raises(SessionError, match=sentence):
        engine.load_session(kept)
    assert held_by(engine) == held


@pytest.mark.long
def test_every_bit_that_flips_is_seen(engine: Engine, kept: Path) -> None:
    data = kept.read_bytes()
    chosen = np.random.default_rng(0)
    for at in [*range(80), *chosen.integers(len(data), size=40).tolist()]:
        kept.write_bytes(data[:at] + bytes([data[at] ^ (1 << int(chosen.integers(8)))]) + data[at + 1 :])
        with pytest.raises(SessionError):
            engine.load_session(kept)


def huge(name: str, shape: list[int]) -> Callable[[bytes], bytes]:
    """The file with a table that claims another shape, and a checksum that fits."""

    def change(data: bytes) -> bytes:
        (table_bytes,) = struct.unpack_from("<I", data, 76)
        table = json.loads(data[80 : 80 + table_bytes])
        table[name][1] = shape
        changed = json.dumps(table).encode()
        content = changed + data[80 + table_bytes :]
        return data[:44] + hashlib.sha256(content).digest() + struct.pack("<I", len(changed)) + content

    return change


@pytest.mark.parametrize("shape", [[1 << 62], [1 << 30, 1 << 30], [-1], [0.5], [1] * 9, "4", None, [True], [0]])
def test_sizes_that_lie_are_refused_before_anything_is_allocated(engine: Engine, kept: Path, shape: list[int]) -> None:
    kept.write_bytes(huge("token_ids", shape)(kept.read_bytes()))
    with pytest.raises(SessionError, match="no sound table"):
        engine.load_session(kept)


def with_value(value: float) -> Callable[[Array], Array]:
    def change(array: Array) -> Array:
        array.reshape(-1)[0] = value
        return array

    return change


HOSTILE: list[tuple[str, Callable[[Array], Array]]] = [
    ("lengths", with_value(-1)),
    ("lengths", with_value(2**31 - 1)),
    ("lengths", lambda array: array.astype(np.int64)),
    ("lengths", lambda array: array[None]),
    ("lengths", lambda array: np.zeros(100_000, np.int32)),
    ("token_ids", with_value(-1)),
    ("token_ids", with_value(2**31 - 1)),
    ("token_ids", lambda array: array[:-1]),
    ("rows/0", lambda array: array[:-1]),
    ("rows/0", lambda array: array[:, :, :-1]),
    ("rows/0", lambda array: array.astype(np.float64)),
    ("rows/0", lambda array: array.view(np.uint8)),
    ("messages", lambda array: np.frombuffer(b"{}", np.uint8)),
    ("messages", lambda array: np.frombuffer(b"[" * 100_000, np.uint8)),
    ("messages", lambda array: np.frombuffer(b'[{"role": 1, "content": []}]', np.uint8)),
    ("messages", lambda array: np.frombuffer(b"\xff", np.uint8)),
    ("messages", lambda array: array.astype(np.int32)),
    ("drafter/history", with_value(-7)),
    ("drafter/parameters", with_value(np.nan)),
    ("drafter/after_pair", lambda array: np.full_like(array, 2**30)),
]


@pytest.mark.parametrize(("name", "change"), HOSTILE)
def test_arrays_that_no_session_has_are_refused_and_change_nothing(
    engine: Engine, kept: Path, name: str, change: Callable[[Array], Array]
) -> None:
    fingerprint = engine.package.fingerprint()
    arrays = FORMAT.read(kept, fingerprint)
    held = held_by(engine)
    FORMAT.write(kept, fingerprint, arrays | {name: change(arrays[name].copy())})
    with pytest.raises(SessionError):
        engine.load_session(kept)
    assert held_by(engine) == held


def test_a_session_without_some_of_its_arrays_is_refused(engine: Engine, kept: Path) -> None:
    fingerprint = engine.package.fingerprint()
    arrays = FORMAT.read(kept, fingerprint)
    for missing in ("messages", "lengths", "token_ids", "rows/0", "drafter/history"):
        FORMAT.write(kept, fingerprint, {name: array for name, array in arrays.items() if name != missing})
        with pytest.raises(SessionError):
            engine.load_session(kept)
    FORMAT.write(kept, fingerprint, arrays)
    engine.load_session(kept)


BITS_OF_BFLOAT16 = np.array([0x7F80], np.uint16), np.array([0x7F00], np.uint16)


def test_rows_that_are_not_numbers_are_refused() -> None:
    wrong: list[Array] = [np.array([1, np.nan], np.float32), np.array([np.inf], np.float16), BITS_OF_BFLOAT16[0]]
    sound: list[Array] = [np.array([1e38], np.float32), np.array([-128, 127], np.int8), BITS_OF_BFLOAT16[1]]
    assert not any(map(session._is_finite, wrong))
    assert all(map(session._is_finite, sound))


def test_another_package_is_refused(engine: Engine, kept: Path, demo_folder: Path, tmp_path: Path) -> None:
    copy = PackageCopy(demo_folder, tmp_path / "package")
    copy.write_file("chat_template.jinja", b"{{ messages[0].content }}")
    with pytest.raises(SessionError, match="belongs to another package"):
        Engine.load(copy.folder, EngineConfig(is_probed=False, is_calibrated=False)).load_session(kept)

"""Sessions: going on from a file is what staying would have been; damaged, foreign or made up ones are refused."""

import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reader_edge_runtime import Engine, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.cache import SlotContents
from reader_edge_runtime.decoding import slot_arrays
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.session import FORMAT
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import ConfigError, SessionError
from tests.reader_edge.package_copy import PackageCopy
from tests.small_disk import small_disk

GREEDY = GenerationConfig(max_tokens=30, ignores_eos=True)
SAMPLED = replace(GREEDY, sampling=SamplingConfig(temperature=0.9, seed=5))
MESSAGES = [{"role": "user", "content": "Zürich \ud800"}]


@pytest.fixture
def kept(engine: Engine, tmp_path: Path) -> Path:
    """A session of two texts."""
    engine.generate_batch(["# tar\n\nArchiving", "# git\n"], [GREEDY, SAMPLED])
    engine.save_session(tmp_path / "kept", MESSAGES)
    return tmp_path / "kept"


def go_on(engine: Engine) -> tuple[list[object], list[bytes]]:
    """Answers that use what is there, and all logits they were chosen from."""
    logits: list[bytes] = []
    seen: dict[Request, int] = {}

    def watch(request: Request, row: np.ndarray) -> None:
        seen.setdefault(request, len(seen))
        logits.append(bytes([seen[request]]) + row.tobytes())

    engine.decoder.on_logits = watch
    try:
        results = [engine.generate("# tar\n\nArchiving", config) for config in (SAMPLED, GREEDY)]
        results.append(engine.generate("# git\n", replace(SAMPLED, max_tokens=60)))
    finally:
        engine.decoder.on_logits = None
    return [(result.token_ids, result.stats.num_reused_tokens) for result in results], logits


def test_going_on_has_the_tokens_and_logits_that_staying_would_have_had(engine: Engine, kept: Path) -> None:
    stayed = go_on(engine)
    assert engine.load_session(kept) == MESSAGES
    assert go_on(engine) == stayed
    assert stayed[0][0][1] > 0  # type: ignore[index]  # rows were used


def test_an_interrupted_loading_leaves_nothing_to_reuse(
    engine: Engine, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = ["# tar\n\nArchiving", "# git\n"]
    expected = [engine.generate(prompt, SAMPLED).token_ids for prompt in prompts]

    def interrupt(slot: int, contents: SlotContents) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.decoder.cache, "write_slot", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.load_session(kept)
    monkeypatch.undo()
    results = [engine.generate(prompt, SAMPLED) for prompt in prompts]
    assert [result.token_ids for result in results] == expected
    assert results[0].stats.num_reused_tokens == 0


def test_another_engine_goes_on_alike_and_knows_as_much(engine: Engine, kept: Path, demo_folder: Path) -> None:
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    learned = {name: array.copy() for name, array in engine.decoder.drafter.state().items()}
    stayed = go_on(engine)
    other = Engine.load(demo_folder, EngineConfig(is_calibrated=False))
    other.load_session(kept)
    assert isinstance(other.decoder.drafter, RetrievalDrafter)
    restored = other.decoder.drafter.state()
    assert learned.keys() == restored.keys()
    assert all(np.array_equal(learned[name], restored[name]) for name in learned)
    assert go_on(other) == stayed


def test_a_plain_engine_s_session_is_drafted_from(engine: Engine, demo_folder: Path, tmp_path: Path) -> None:
    plain = Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_drafted=False))
    answered = plain.generate("# tar", GREEDY).token_ids
    plain.save_session(tmp_path / "plain", MESSAGES)
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.generate("# git", GREEDY)
    assert engine.load_session(tmp_path / "plain") == MESSAGES
    assert not len(engine.decoder.drafter.state()["history"])
    result = engine.generate("# tar", GREEDY)
    assert result.token_ids == answered
    assert result.stats.num_reused_tokens > 0


def test_a_session_saved_during_an_answer_has_it_as_far_as_it_came(engine: Engine, tmp_path: Path) -> None:
    stream = engine.stream("# tar", GREEDY)
    answered = [token_id for _ in range(4) for token_id in next(stream).token_ids]
    engine.save_session(tmp_path / "running")
    with pytest.raises(SessionError, match="Requests run"):
        engine.load_session(tmp_path / "running")
    stream.close()
    engine.load_session(tmp_path / "running")
    prompt = engine.encode_prompt("# tar") + answered
    result = engine.generate(prompt, GREEDY)
    assert result.stats.num_reused_tokens == len(prompt) - 1
    engine.forget()
    assert engine.generate(prompt, GREEDY).token_ids == result.token_ids


def test_the_last_session_saved_is_found_with_its_messages(engine: Engine, kept: Path, tmp_path: Path) -> None:
    engine.generate("# curl", GREEDY)
    engine.save_session(kept)
    assert engine.load_session(kept) == []
    assert not [path for path in kept.parent.iterdir() if path != kept]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    engine.save_session(tmp_path / "kept", messages)
    assert engine.load_session(tmp_path / "kept") == messages
    engine.save_session(kept)
    engine.save_session(kept, engine.load_session(kept))
    assert engine.load_session(kept) == []


def test_a_session_is_taken_up_within_a_bound_on_memory(kept: Path, demo_folder: Path) -> None:
    config = EngineConfig(max_kv_bytes=1 << 26, is_calibrated=False, is_probed=False)
    bounded = Engine.load(demo_folder, config)
    assert bounded.load_session(kept) == MESSAGES
    assert bounded.generate("# git\n", GREEDY).stats.num_reused_tokens > 0
    assert bounded.decoder.num_kv_bytes <= 1 << 26


@pytest.mark.parametrize("config", [EngineConfig(max_batch=1), EngineConfig(max_kv_bytes=1 << 16)])
def test_a_session_too_large_is_refused_with_what_to_raise(kept: Path, config: EngineConfig, demo_folder: Path) -> None:
    engine = Engine.load(demo_folder, replace(config, is_calibrated=False, is_probed=False))
    with pytest.raises(SessionError, match="max_batch" if config.max_batch == 1 else "max_kv_bytes"):
        engine.load_session(kept)


@pytest.mark.parametrize(
    "messages",
    [
        ["a"],
        [{"role": "user"}],
        [{"role": "user", "content": b"a"}],
        [{"role": 1, "content": "a"}],
        [1],
        {"role": "user", "content": "a"},
        [{"role": "user", "content": "a", "when": {1}}],
        [{"role": "user", "content": "a" * (1 << 26)}],
    ],
    ids=lambda messages: str(messages)[:40],
)
def test_messages_that_could_not_be_loaded_are_not_saved(engine: Engine, messages: list[Any], tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="The messages"):
        engine.save_session(tmp_path / "kept", messages)
    assert not os.listdir(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_a_session_is_its_owner_s_alone(kept: Path) -> None:
    assert kept.stat().st_mode & 0o077 == 0


def test_places_where_nothing_can_be_are_one_sentence(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="cannot be written"):
        engine.save_session(tmp_path / "no" / "folder")
    with pytest.raises(ConfigError, match=r"can be no path: .*null byte"):
        engine.save_session(tmp_path / "a\0b")
    with pytest.raises(SessionError, match=r"There is no file '.*none': name another file\."):
        engine.load_session(tmp_path / "none")
    with pytest.raises(SessionError, match="is not a file of a session"):
        engine.load_session(tmp_path)


def test_a_full_disk_leaves_the_old_session_and_nothing_else(engine: Engine, kept: Path) -> None:
    data = kept.read_bytes()
    with small_disk(1 << 20), pytest.raises(SessionError, match="cannot be written"):
        engine.save_session(kept)
    assert kept.read_bytes() == data
    assert os.listdir(kept.parent) == [kept.name]


@pytest.fixture
def short_session(engine: Engine, tmp_path: Path) -> Path:
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
    engine: Engine, short_session: Path, spoil: Callable[[bytes], bytes], sentence: str
) -> None:
    held = held_by(engine)
    short_session.write_bytes(spoil(short_session.read_bytes()))
    with pytest.raises(SessionError, match=sentence):
        engine.load_session(short_session)
    assert held_by(engine) == held


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
def test_sizes_that_lie_are_refused_at_once(engine: Engine, short_session: Path, shape: list[int]) -> None:
    short_session.write_bytes(huge("token_ids", shape)(short_session.read_bytes()))
    with pytest.raises(SessionError, match="no sound table"):
        engine.load_session(short_session)


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
    engine: Engine, short_session: Path, name: str, change: Callable[[Array], Array]
) -> None:
    fingerprint = engine.package.fingerprint()
    arrays = FORMAT.read(short_session, fingerprint)
    held = held_by(engine)
    FORMAT.write(short_session, fingerprint, arrays | {name: change(arrays[name].copy())})
    with pytest.raises(SessionError):
        engine.load_session(short_session)
    assert held_by(engine) == held


def test_a_session_without_some_of_its_arrays_is_refused(engine: Engine, short_session: Path) -> None:
    fingerprint = engine.package.fingerprint()
    arrays = FORMAT.read(short_session, fingerprint)
    for missing in ("messages", "lengths", "token_ids", "rows/0", "drafter/history"):
        FORMAT.write(short_session, fingerprint, {name: array for name, array in arrays.items() if name != missing})
        with pytest.raises(SessionError):
            engine.load_session(short_session)
    FORMAT.write(short_session, fingerprint, arrays)
    engine.load_session(short_session)


BITS_OF_BFLOAT16 = np.array([0x7F80], np.uint16), np.array([0x7F00], np.uint16)


def test_rows_that_are_not_numbers_are_refused() -> None:
    wrong: list[Array] = [np.array([1, np.nan], np.float32), np.array([np.inf], np.float16), BITS_OF_BFLOAT16[0]]
    sound: list[Array] = [np.array([1e38], np.float32), np.array([-128, 127], np.int8), BITS_OF_BFLOAT16[1]]
    assert not any(map(slot_arrays._is_finite, wrong))
    assert all(map(slot_arrays._is_finite, sound))


def test_another_package_is_refused(engine: Engine, short_session: Path, demo_folder: Path, tmp_path: Path) -> None:
    copy = PackageCopy(demo_folder, tmp_path / "package")
    copy.write_file("chat_template.jinja", b"{{ messages[0].content }}")
    with pytest.raises(SessionError, match="belongs to another package"):
        Engine.load(copy.folder, EngineConfig(is_probed=False, is_calibrated=False)).load_session(short_session)

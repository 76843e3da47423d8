"""What was learned, saved: it drafts as before, a source's own included, and a foreign or damaged file is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.successor_store import LEARNED
from reader_edge_runtime.errors import DraftError
from tests.drafted_text import VOCAB_SIZE, DraftedText, EchoSource, make_drafter, scored_root

FINGERPRINT = bytes(range(32))


def taught(drafter: RetrievalDrafter, seed: int = 0) -> RetrievalDrafter:
    """The drafter after some answers that repeat each other in part."""
    random = np.random.default_rng(seed)
    for _ in range(4):
        text = DraftedText(drafter, random.integers(6, size=12).tolist())
        for _ in range(12):
            text.draft(12, 6)
            text.go_on(random.integers(6, size=2).tolist(), scored_root(text, random.permutation(50)[:6].tolist()))
        text.finish()
    return drafter


def next_drafts(drafter: RetrievalDrafter) -> list[DraftTree]:
    random = np.random.default_rng(1)
    text = DraftedText(drafter, random.integers(6, size=5).tolist())
    drafts = []
    for _ in range(15):
        drafts.append(text.draft(16, 6))
        text.go_on(random.integers(6, size=2).tolist())
    return drafts


def test_what_was_saved_drafts_as_what_stayed(tmp_path: Path) -> None:
    source, loaded_source = EchoSource(), EchoSource()
    stayed, loaded = taught(make_drafter(source)), taught(make_drafter(loaded_source), seed=5)
    source.probability[:] = 0.25
    LEARNED.write(tmp_path / "learned", FINGERPRINT, stayed.state())
    loaded.restore(LEARNED.read(tmp_path / "learned", FINGERPRINT), VOCAB_SIZE)
    assert loaded_source.probability == 0.25
    assert next_drafts(loaded) == next_drafts(stayed)
    loaded.forget()
    assert loaded_source.probability == 0.9


def break_bytes(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda data: b"", "is not a file"),
        (lambda data: b"x" + data[1:], "is not a file"),
        (lambda data: data[:200], "is damaged"),
        (break_bytes, "is damaged"),
        (lambda data: data[:12] + bytes(32) + data[44:], "another tokenizer"),
    ],
)
def test_a_foreign_or_damaged_file_is_refused(spoil: Callable[[bytes], bytes], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "learned"
    LEARNED.write(path, FINGERPRINT, taught(make_drafter(EchoSource())).state())
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DraftError, match=sentence):
        LEARNED.read(path, FINGERPRINT)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("history", np.array([5, -1], np.int32)),
        ("history", np.array([5, VOCAB_SIZE], np.int32)),
        ("history", np.array([5, 6], np.int64)),
        ("history_lengths", np.array([7], np.int32)),
        ("history_lengths", np.array([2, -1], np.int32)),
        ("parameters", np.zeros(3, np.float32)),
        ("parameters", np.array(1.0, np.float32)),
        ("after_token", np.full((10, 16), -1, np.int32)),
        ("after_token", np.full((10, 16), 2**30, np.int32)),
        ("after_pair", np.zeros((3, 16), np.int32)),
        ("echo/probability", np.zeros(2)),
    ],
)
def test_arrays_that_no_drafter_saved_are_refused_and_nothing_changes(name: str, array: np.ndarray) -> None:
    drafter = taught(make_drafter(EchoSource()))
    with pytest.raises(DraftError):
        drafter.restore({**make_drafter(EchoSource()).state(), name: array}, VOCAB_SIZE)
    assert next_drafts(drafter) == next_drafts(taught(make_drafter(EchoSource())))


def test_a_mixture_of_any_finite_numbers_drafts_without_harm() -> None:
    drafter = make_drafter(EchoSource())
    arrays = drafter.state()
    random = np.random.default_rng(0)
    for scale in (1e-30, 1.0, 1e30, 3e38):
        arrays["parameters"] = (scale * (random.random(len(arrays["parameters"])) + 0.1)).astype(np.float32)
        drafter.restore(arrays, VOCAB_SIZE)
        taught(drafter)

"""A further source: asked for all requests at once, told what the target said, saved, and alone with its faults."""

import gc
import hashlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftWish
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.source import Arrays, Proposal
from reader_edge_runtime.drafting.state_file import read_state, write_state
from reader_edge_runtime.errors import ConfigError, DraftError
from tests.drafted_text import DraftedText

VOCAB_SIZE = 1000
FINGERPRINT = bytes(range(32))


@dataclass
class EchoRequest:
    """Keeps what it observes. is_faulty: then observing fails."""

    token_ids: Sequence[int]
    is_faulty: bool
    observed: list[ScoredTree] = field(default_factory=list)

    def observe(self, scored: ScoredTree | None) -> None:
        if self.is_faulty:
            raise ZeroDivisionError("observed")
        if scored is not None:
            self.observed.append(scored)

    def finish(self) -> None:
        self.observed.clear()


class EchoSource:
    """Proposes 500 plus a text's first token, as sure as it was told to be; texts that begin with `faulty` fail."""

    name = "echo"
    wants_hidden_states = True

    def __init__(self, faulty: int = -1, fault: str = "propose") -> None:
        self.faulty, self.fault = faulty, fault
        self.probability = np.array([0.9])
        self.requests: list[EchoRequest] = []
        self.asked: list[int] = []

    def begin(self, token_ids: Sequence[int]) -> EchoRequest:
        is_faulty = token_ids[0] == self.faulty
        if is_faulty and self.fault == "begin":
            raise ZeroDivisionError("began")
        self.requests.append(EchoRequest(token_ids, is_faulty and self.fault == "observe"))
        return self.requests[-1]

    def propose(self, wishes: Sequence[DraftWish]) -> list[Proposal]:
        self.asked.append(len(wishes))
        return [self._proposal(cast(EchoRequest, wish.request).token_ids) for wish in wishes]

    def _proposal(self, token_ids: Sequence[int]) -> Proposal:
        if token_ids[0] == self.faulty and self.fault == "propose":
            raise ZeroDivisionError("proposed")
        bad = token_ids[0] == self.faulty and self.fault == "proposal"
        return Proposal([-1 if bad else 500 + token_ids[0]], [-1], [float(self.probability[0])])

    def state(self) -> Arrays:
        return {"probability": self.probability}

    def restore(self, arrays: Arrays) -> None:
        self.probability = arrays["probability"].reshape(1) if arrays else np.array([0.9])


@contextmanager
def collection_off() -> Iterator[None]:
    """Only counted references are freed: a cycle stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def make_drafter(source: EchoSource) -> RetrievalDrafter:
    return RetrievalDrafter(DraftConfig(max_nodes=16), [source]).wait()


def begin_three(drafter: RetrievalDrafter) -> list[DraftedText]:
    return [DraftedText(drafter, [first, 7, 8, 9]) for first in (1, 2, 3)]


def draft_all(drafter: RetrievalDrafter, texts: Sequence[DraftedText]) -> list[DraftTree | DraftError]:
    drafts = drafter.draft([DraftWish(text.request, 8, 4) for text in texts])
    assert all(isinstance(each, DraftTree | DraftError) for each in drafts)
    return cast(list[DraftTree | DraftError], drafts)


def scored_root(text: DraftedText, top_ids: Sequence[int], hidden_states: Sequence[float] | None = None) -> ScoredTree:
    """What the target said of a text's last token."""
    tree, ids = DraftTree.root(text.token_ids[-1]), np.array([top_ids])
    hidden = None if hidden_states is None else np.array([hidden_states], np.float32)
    logits = -np.arange(len(top_ids), dtype=np.float32)[None]
    return ScoredTree(tree, range(1), len(text.token_ids) - 1, ids, logits, VOCAB_SIZE, hidden)


def test_all_requests_of_a_step_are_asked_for_at_once_and_each_gets_its_own_proposal() -> None:
    source = EchoSource()
    drafter = make_drafter(source)
    trees = draft_all(drafter, begin_three(drafter))
    assert source.asked == [3]
    for first, tree in zip((1, 2, 3), trees, strict=True):
        assert isinstance(tree, DraftTree)
        node = tree.child(0, 500 + first)
        assert tree.sources[node] == "echo"
        assert {500 + other for other in (1, 2, 3)} & set(tree.token_ids) == {500 + first}


def test_hidden_states_reach_the_request_whose_nodes_they_are_of() -> None:
    source = EchoSource()
    drafter = make_drafter(source)
    assert drafter.wants_hidden_states
    texts = begin_three(drafter)
    for text in (texts[0], texts[2], texts[0]):
        text.go_on([10 + text.token_ids[0]], scored_root(text, [4, 5], [text.token_ids[0], len(text.token_ids)]))
    draft_all(drafter, texts)
    seen = [[each.hidden_states for each in request.observed] for request in source.requests]
    assert [[each.tolist() for each in states if each is not None] for states in seen] == [
        [[[1.0, 4.0]], [[1.0, 5.0]]],
        [],
        [[[3.0, 4.0]]],
    ]
    assert source.requests[0].observed[1].root == 4


@pytest.mark.parametrize("fault", ["begin", "observe", "propose", "proposal"])
def test_a_fault_of_one_request_leaves_the_others_their_trees(fault: str) -> None:
    drafter = make_drafter(EchoSource(faulty=2, fault=fault))
    texts = begin_three(drafter)
    for text in texts:
        text.go_on([7], scored_root(text, [4, 5]))
    first, failed, third = draft_all(drafter, texts)
    assert isinstance(failed, DraftError)
    assert "'echo'" in str(failed)
    assert isinstance(failed.__cause__, ZeroDivisionError) == (fault != "proposal")
    for number, tree in ((1, first), (3, third)):
        assert isinstance(tree, DraftTree)
        assert tree.child(0, 500 + number) > 0


@pytest.mark.parametrize("fault", ["begin", "observe", "propose", "proposal"])
def test_a_fault_that_somebody_keeps_keeps_no_drafter(fault: str) -> None:
    drafter = make_drafter(EchoSource(faulty=2, fault=fault))
    texts = begin_three(drafter)
    for text in texts:
        text.go_on([7], scored_root(text, [4, 5]))
    failed = draft_all(drafter, texts)[1]
    assert isinstance(failed, DraftError)
    assert "Traceback" in failed.__notes__[0]
    ended = weakref.ref(drafter)
    with collection_off():
        del drafter, texts, text
        assert ended() is None


@pytest.mark.parametrize("error", [DraftError("of its own"), ZeroDivisionError("forgot")])
def test_a_source_that_fails_to_forget_keeps_no_drafter(error: Exception) -> None:
    source = EchoSource()

    def failing(arrays: Arrays) -> None:
        raise type(error)(*error.args)

    source.restore = failing  # type: ignore[method-assign]  # a source that cannot forget
    drafter = make_drafter(source)
    ended = weakref.ref(drafter)
    with collection_off():
        with pytest.raises(DraftError, match=str(error)):
            drafter.forget()
        del drafter
        assert ended() is None


def test_a_source_that_answers_too_few_is_at_fault_with_all() -> None:
    source = EchoSource()
    source.propose = lambda wishes: []  # type: ignore[method-assign]  # a source that forgets its requests
    drafter = make_drafter(source)
    assert all("gave 0 proposals" in str(each) for each in draft_all(drafter, begin_three(drafter)))


def test_more_sources_than_can_be_mixed_are_refused() -> None:
    with pytest.raises(ConfigError, match="At most 2"):
        RetrievalDrafter(DraftConfig(), [EchoSource()] * 3)


@pytest.mark.parametrize("token_id", [-1, -(2**31), VOCAB_SIZE, 2**31, 2**63 - 1])
@pytest.mark.parametrize("column", [0, 1, 3])
def test_ids_that_a_target_may_not_name_never_reach_compiled_code(token_id: int, column: int) -> None:
    top_ids = [4, 5, 6, 7]
    top_ids[column] = token_id
    text = DraftedText(make_drafter(EchoSource()), [1, 2])
    with pytest.raises(DraftError, match=rf"token id {token_id} .* the vocabulary has 1000"):
        scored_root(text, top_ids)


@pytest.mark.parametrize("shape", [(1, 3), (2, 4), (1,)])
def test_logits_of_another_shape_than_their_ids_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DraftError, match="shape"):
        ScoredTree(DraftTree.root(1), range(1), 0, np.zeros((1, 4), np.int64), np.zeros(shape, np.float32), VOCAB_SIZE)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_no_numbers_leave_drafts_sound(value: float) -> None:
    text = DraftedText(make_drafter(EchoSource()), [1, 2, 3])
    for _ in range(5):
        scored = scored_root(text, [4, 5, 3])
        scored.top_logits[:] = value
        text.go_on([3], scored)
        tree = text.draft(8, 4)
        tree.check(3, VOCAB_SIZE, 8)
        assert np.isfinite(tree.values).all()


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
    stayed.save(tmp_path / "learned", FINGERPRINT)
    loaded.load(tmp_path / "learned", FINGERPRINT, VOCAB_SIZE)
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
def test_a_foreign_or_damaged_file_is_refused_and_nothing_changes(
    spoil: Callable[[bytes], bytes], sentence: str, tmp_path: Path
) -> None:
    path, drafter = tmp_path / "learned", taught(make_drafter(EchoSource()))
    drafter.save(path, FINGERPRINT)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DraftError, match=sentence):
        drafter.load(path, FINGERPRINT, VOCAB_SIZE)
    assert next_drafts(drafter) == next_drafts(taught(make_drafter(EchoSource())))


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
def test_arrays_that_no_drafter_saved_are_refused(name: str, array: np.ndarray, tmp_path: Path) -> None:
    path, drafter = tmp_path / "learned", make_drafter(EchoSource())
    drafter.save(path, FINGERPRINT)
    arrays = read_state(path, FINGERPRINT)
    write_state(path, FINGERPRINT, {**arrays, name: array})
    with pytest.raises(DraftError):
        drafter.load(path, FINGERPRINT, VOCAB_SIZE)


def test_a_mixture_of_any_finite_numbers_drafts_without_harm(tmp_path: Path) -> None:
    path, drafter = tmp_path / "learned", make_drafter(EchoSource())
    drafter.save(path, FINGERPRINT)
    arrays = read_state(path, FINGERPRINT)
    random = np.random.default_rng(0)
    for scale in (1e-30, 1.0, 1e30, 3e38):
        arrays["parameters"] = (scale * (random.random(len(arrays["parameters"])) + 0.1)).astype(np.float32)
        write_state(path, FINGERPRINT, arrays)
        drafter.load(path, FINGERPRINT, VOCAB_SIZE)
        taught(drafter)


def test_a_file_that_claims_more_than_it_holds_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    path = tmp_path / "learned"
    write_state(path, FINGERPRINT, {"history": np.zeros(3, np.int32)})
    data = path.read_bytes()
    for shape in (b"[4]", b"[1]", b"[9]", b"0.5"):
        table = data[80:].replace(b"[3]", shape)
        write_raw(path, data, table)
        with pytest.raises(DraftError, match="no sound table"):
            read_state(path, FINGERPRINT)


def write_raw(path: Path, data: bytes, content: bytes) -> None:
    path.write_bytes(data[:44] + hashlib.sha256(content).digest() + data[76:80] + content)

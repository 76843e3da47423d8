"""A model's own answers are drafted from as past ones are, and believed only where they can be its own."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reader_edge_runtime.array_file import MAX_BYTES
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources import warmup_answers
from reader_edge_runtime.drafting.sources.history_file import HistoryFile
from reader_edge_runtime.drafting.sources.warmup_answers import MOST_TOKENS, WARMUP_ANSWERS_NAME, WarmupAnswers
from reader_edge_runtime.errors import PackageError
from reader_edge_runtime.package.manifest import FileEntry
from reader_edge_runtime.package.model_package import ModelPackage
from tests.drafted_text import DraftedText
from tests.fake_target import make_manifest
from tests.fuzz.mutation import memory_limit

VOCAB_SIZE = 40
TEXT = np.arange(5, 25, dtype=np.int32)
OWN = WarmupAnswers([TEXT, np.array([30, 31, 32], np.int32)])


def make_package(folder: Path, checksum: str = "ab" * 32) -> ModelPackage:
    files = {"model.onnx": FileEntry(1, checksum)}
    return ModelPackage(folder, replace(make_manifest(), vocab_size=VOCAB_SIZE, files=files))


def make_drafter(config: DraftConfig | None = None, history_file: HistoryFile | None = None) -> RetrievalDrafter:
    return RetrievalDrafter(config or DraftConfig(), history_file=history_file, warmup_answers=OWN).wait()


def test_a_first_request_is_drafted_from_them_and_so_is_the_next_after_forgetting() -> None:
    drafter = make_drafter()
    for _ in range(2):
        tree = DraftedText(drafter, [39, 5, 6, 7]).draft(6, 5)
        assert (tree.token_ids[1], tree.sources[1]) == (8, "history")
        drafter.forget()


def test_without_history_they_rest() -> None:
    drafter = make_drafter(DraftConfig(is_history_used=False))
    assert 8 not in DraftedText(drafter, [39, 5, 6, 7]).draft(6, 5).token_ids


def test_past_answers_push_them_out() -> None:
    drafter = make_drafter(DraftConfig(max_history_tokens=len(TEXT) + 4))
    first = DraftedText(drafter, [1])
    first.draft(2, 2)
    first.go_on([33, 34, 35, 36, 37, 38])
    first.finish()
    assert 8 not in DraftedText(drafter, [39, 5, 6, 7]).draft(6, 5).token_ids


def test_what_was_learned_holds_them_once() -> None:
    drafter, restored = make_drafter(), make_drafter()
    restored.restore(drafter.state(), VOCAB_SIZE)
    assert restored.state()["history_lengths"].tolist() == [20, 3]


def test_a_history_file_keeps_what_was_answered_and_not_what_the_model_knew(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "past", bytes(32), 1000, VOCAB_SIZE)
    drafter = make_drafter(history_file=file)
    request = DraftedText(drafter, [39, 5])
    for token in range(6, 20):  # along an own answer, which is used thereby
        request.draft(4, 4)
        request.go_on([token])
    request.finish()
    assert [text.tolist() for text in file.read()] == [[39, 5, *range(6, 20)]]


def test_a_package_gives_back_what_lies_beside_it(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    assert WarmupAnswers.of_package(package) is None
    assert OWN.write(package) == tmp_path / WARMUP_ANSWERS_NAME
    found = WarmupAnswers.of_package(package)
    assert found is not None
    assert [text.tolist() for text in found.texts] == [text.tolist() for text in OWN.texts]
    assert found.num_tokens == 23


def test_those_of_another_package_are_refused(tmp_path: Path) -> None:
    OWN.write(make_package(tmp_path))
    with pytest.raises(PackageError, match="belongs to another package: erase it"):
        WarmupAnswers.of_package(make_package(tmp_path, checksum="cd" * 32))


def test_a_link_is_refused_unread(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    path = OWN.write(package)
    path.symlink_to(path.rename(tmp_path / "elsewhere"))
    with pytest.raises(PackageError, match="leads elsewhere"):
        WarmupAnswers.of_package(package)


def test_a_file_larger_than_any_answers_is_refused_unread(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    os.truncate(OWN.write(package), MAX_BYTES)
    with memory_limit(256 << 20), pytest.raises(PackageError, match=WARMUP_ANSWERS_NAME):
        WarmupAnswers.of_package(package)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tokens, lengths: {"tokens": tokens},
        lambda tokens, lengths: {"tokens": tokens, "lengths": lengths.astype(np.int64)},
        lambda tokens, lengths: {"tokens": tokens.astype(np.float32), "lengths": lengths},
        lambda tokens, lengths: {"tokens": tokens[None], "lengths": lengths},
        lambda tokens, lengths: {"tokens": tokens[:0], "lengths": lengths[:0]},
        lambda tokens, lengths: {"tokens": tokens, "lengths": lengths + 1},
        lambda tokens, lengths: {"tokens": tokens, "lengths": np.array([24, -1], np.int32)},
        lambda tokens, lengths: {"tokens": tokens + VOCAB_SIZE, "lengths": lengths},
        lambda tokens, lengths: {"tokens": -tokens, "lengths": lengths},
        lambda tokens, lengths: {
            "tokens": np.ones(MOST_TOKENS + 1, np.int32),
            "lengths": np.array([MOST_TOKENS + 1], np.int32),
        },
    ],
)
def test_wrong_answers_are_refused(tmp_path: Path, spoil: Callable[[Array, Array], dict[str, Array]]) -> None:
    package = make_package(tmp_path)
    arrays = spoil(np.concatenate(OWN.texts), np.array([20, 3], np.int32))
    warmup_answers._FORMAT.write(tmp_path / WARMUP_ANSWERS_NAME, package.fingerprint(), arrays)
    with pytest.raises(PackageError, match="that this model could give: erase it"):
        WarmupAnswers.of_package(package)

"""A package that speculators are trained for, and trainings that a test can wait for."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reader_edge_export.quantize.compensation import one_thread_a_call
from reader_edge_export.speculators.training import batches, generated_answers, train_speculator


@pytest.fixture(scope="session")
def package(exported: Callable[..., Path]) -> Path:
    return exported("llama", "int8", "exact")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Answers that a test can wait for, and steps too small for two threads."""
    monkeypatch.setattr(generated_answers, "BATCH", 16)
    monkeypatch.setattr(train_speculator, "_MAX_TOKENS", 12)
    monkeypatch.setattr(train_speculator, "MAX_IDS", 80)
    monkeypatch.setattr(train_speculator, "_EPOCHS", 3)
    monkeypatch.setattr(batches, "ROW", 64)
    with one_thread_a_call():
        yield

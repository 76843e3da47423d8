"""A package whose target heads are trained for, and trainings that a test can wait for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reader_edge_export.heads import self_written, train_drafter
from reader_edge_export.heads.self_written import Manner


@pytest.fixture(scope="session")
def package(exported: Callable[..., Path]) -> Path:
    return exported("llama", "int8", "exact")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that a test can wait for."""
    monkeypatch.setattr(self_written, "BATCH", 16)
    monkeypatch.setattr(train_drafter, "_MANNER", Manner(max_tokens=12))
    monkeypatch.setattr(train_drafter, "_EPOCHS", 2)

"""Tiny models and packages, each made once a session."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from reader_edge_export import ExportOptions, export_model
from tests.export.record_transformers5 import write_folder
from tests.tiny_models import build_tiny_model

TinyModel = Callable[[str], Path]
Exported = Callable[..., Path]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny models gain nothing from threads, and lose much where other processes compete for the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """model_type -> the folder of a random model; not to be changed."""
    root = tmp_path_factory.mktemp("models")

    def build(model_type: str) -> Path:
        folder = root / model_type
        return folder if folder.exists() else build_tiny_model(model_type, folder)

    return build


@pytest.fixture(scope="session")
def folder_of_5(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Name of a recorded model -> its folder as transformers 5 writes it; not to be changed."""
    root = tmp_path_factory.mktemp("transformers5")

    def build(name: str) -> Path:
        if not (root / name).exists():
            write_folder(name, root / name)
        return root / name

    return build


@pytest.fixture(autouse=True, scope="module")
def few_texts() -> Iterator[None]:
    """Exports calibrate and measure on few texts, which are enough for packages that tests look into."""
    with _few_tokens():
        yield


@contextmanager
def _few_tokens() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reader_edge_export.package_export.max_calibration_tokens", lambda _: 200)
        patch.setattr("reader_edge_export.checks.package_check.max_quality_tokens", lambda _: 100)
        yield


@pytest.fixture(scope="session")
def exported(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """(model_type, precision, attention[, kv, is_checked]) -> the folder of its package; not to be changed.

    is_checked: whether its checks and its table of successors are wanted.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each is made once for all workers
        root = root.parent
    (root / "packages").mkdir(exist_ok=True)

    def export(model_type: str, precision: str, attention: str, kv: str | None = None, is_checked: bool = True) -> Path:
        name = f"{model_type}-{precision}-{attention}-{kv}"
        checked, unchecked = (root / "packages" / f"{name}-{check}" for check in ("full", "none"))
        out = checked if is_checked or checked.exists() else unchecked
        with FileLock(f"{out}.lock"):
            if not out.exists():
                with _few_tokens():
                    options = ExportOptions(precision, attention, kv=kv, check="full" if is_checked else "none")
                    export_model(tiny_model(model_type), out, options)
        return out

    return export


@pytest.fixture
def source(tiny_model: TinyModel, tmp_path: Path) -> Path:
    """A copy of the tiny llama that a test may spoil."""
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "source"))

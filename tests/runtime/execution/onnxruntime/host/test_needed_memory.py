"""A package that cannot fit is refused before it is loaded; whatever may fit is not."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge_runtime.errors import MemoryShortageError, ProviderError
from reader_edge_runtime.execution.onnxruntime.host import host_graph, needed_memory
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.host.needed_memory import check_memory, needed_bytes
from reader_edge_runtime.package.manifest import GRAPH_NAME, WEIGHTS_NAME, FileEntry, Manifest
from reader_edge_runtime.package.model_package import ModelPackage

GB = 10**9


@pytest.fixture
def manifest(demo_folder: Path) -> Manifest:
    """Of a model of seven billion parameters in eight bits, whose embedding is a matrix of its own."""
    return replace(
        ModelPackage.open(demo_folder).manifest,
        precision="int8",
        kv_dtype="int8",
        num_layers=28,
        num_kv_heads=4,
        head_dim=128,
        vocab_size=152_064,
        hidden_size=3584,
        max_context=32_768,
        files={GRAPH_NAME: FileEntry(10**6, ""), WEIGHTS_NAME: FileEntry(7_650_000_000, "")},
    )


def set_free(monkeypatch: pytest.MonkeyPatch, num_bytes: int | None) -> None:
    monkeypatch.setattr(needed_memory, "free_bytes", lambda: num_bytes)


def test_what_counts_is_certain(manifest: Manifest) -> None:
    embedding = 152_064 * 3584
    assert 7_650_000_000 - 1.1 * embedding < needed_bytes(manifest) < 7_650_000_000 - 0.9 * embedding
    wide = replace(manifest, precision="fp32")
    assert needed_bytes(manifest) - needed_bytes(wide) == pytest.approx(embedding * (4 - 1 - 4 / 64), rel=1e-6)
    assert needed_bytes(replace(manifest, hidden_size=None)) < 4 * GB  # for a device: its embedding is not known
    assert 0 < needed_bytes(replace(manifest, files={})) < 100_000_000


@pytest.mark.parametrize(
    ("free", "remedy"),
    [
        (3_290_000_000, "3.2 GB are free: end other programs, or take a model of about 5 billion parameters at"),
        (1_000_000_000, "1.0 GB are free: end other programs, or take a model of about 1 billion parameters at"),
        (500_000_000, "0.5 GB are free: end other programs, or take a model of about 600 million parameters at"),
        (0, "0.0 GB are free: end other programs, or take a smaller model."),
    ],
)
def test_a_package_that_cannot_fit_is_refused_with_what_would(
    manifest: Manifest, free: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_free(monkeypatch, free)
    with pytest.raises(MemoryShortageError, match=r"^'big' needs at least 7\.2 GB of memory and ") as refusal:
        check_memory(ModelPackage(Path("big"), manifest))
    assert remedy in str(refusal.value)


def test_a_package_that_may_fit_is_not_refused(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModelPackage(Path("big"), manifest)
    for free in (None, needed_bytes(manifest), 8 * GB):
        set_free(monkeypatch, free)
        check_memory(package)
    set_free(monkeypatch, needed_bytes(manifest) - 1)
    with pytest.raises(ProviderError):
        check_memory(package)


def test_nothing_is_loaded_of_a_refused_package(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_free(monkeypatch, 1000)
    monkeypatch.setattr(host_graph, "native_library", lambda: Path("kernels"))
    monkeypatch.setattr(host_graph, "open_session", None)  # calling it would fail
    with pytest.raises(MemoryShortageError):
        HostTarget.open(ModelPackage.open(demo_folder))
    told = CliRunner().invoke(main, ["run", str(demo_folder), "-p", "a", "-n", "1"])
    assert (told.exit_code, told.stdout) == (1, "")
    assert "GB are free: end other programs" in " ".join(told.stderr.split())


def test_without_native_kernels_weights_may_stay_in_the_file(
    demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_free(monkeypatch, 1000)
    assert not HostTarget.open(ModelPackage.open(demo_folder), 1, uses_native=False).is_native

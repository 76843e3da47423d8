"""Fetching from the hub: whole or not at all, resumed after a break or a kill, checked, and shown in one sentence."""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from filelock import FileLock

from reader_edge.cli import main
from reader_edge.models import hub as hub_module
from reader_edge.models.pull import pulled
from reader_edge.models.store import StoredModel
from reader_edge_runtime.errors import CatalogueError, HubUnavailableError, UnsupportedArchitectureError
from tests.reader_edge.models.conftest import REVISION, FakeHub, set_hub


def test_a_model_is_fetched_once_with_what_an_export_needs(hub: FakeHub) -> None:
    folder = pulled("owner/model")
    assert folder.name == "model"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: hub.files[name] for name in ("config.json", "model.safetensors")
    }
    assert pulled("owner/model") == folder
    assert [name for name, _ in hub.downloads] == ["config.json", "model.safetensors"]


def test_what_says_how_an_embedding_model_pools_comes_along_and_no_other_folder(hub: FakeHub) -> None:
    hub.files |= {"1_Pooling/config.json": b"{}", "onnx/config.json": b"{}"}
    folder = pulled("owner/model")
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert sorted(files) == ["1_Pooling/config.json", "config.json", "model.safetensors"]


def test_the_command_prints_where_the_model_lies(hub: FakeHub, runner: CliRunner) -> None:
    result = runner.invoke(main, ["pull", "owner/model"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{pulled('owner/model')}\n"


def test_what_is_here_is_found_without_the_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pulled("owner/model")
    monkeypatch.setattr(hub_module, "fetch", None)  # calling it would fail
    assert pulled("owner/model") == folder


def test_what_sees_for_a_gguf_file_is_fetched_along_in_one_precision(hub: FakeHub) -> None:
    names = ("mmproj-model-F32.gguf", "mmproj-model-bf16.gguf", "mmproj-model-f16.gguf", "Q8/mmproj-model-Q8_0.gguf")
    hub.files |= {name: name.encode() for name in names} | {"vision.gguf": b"text", "Q8/vision.gguf": b"text"}
    path = pulled("owner/model/vision.gguf")
    assert path.name == "vision.gguf"
    assert [each.name for each in path.parent.glob("mmproj*")] == ["mmproj-model-f16.gguf"]
    path = pulled("owner/model/Q8/vision.gguf")
    assert sorted(each.name for each in path.parent.iterdir()) == ["mmproj-model-Q8_0.gguf", "vision.gguf"]
    alone = pulled("owner/model/mmproj-model-bf16.gguf").parent
    assert [each.name for each in alone.iterdir()] == ["mmproj-model-bf16.gguf"]


def test_a_single_gguf_file_is_fetched_by_its_name(hub: FakeHub) -> None:
    path = pulled("owner/model/model.gguf")
    assert path.read_bytes() == hub.files["model.gguf"]
    assert [name for name, _ in hub.downloads] == ["model.gguf"]


@pytest.mark.parametrize("folder", ["", "Q8_0/"])
def test_a_file_in_parts_is_fetched_by_the_first_one_s_name(hub: FakeHub, folder: str) -> None:
    names = [f"big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    hub.files |= {f"{folder}{name}": name.encode() for name in names} | {f"{folder}other.gguf": b""}
    path = pulled(f"owner/model/{folder}{names[0]}")
    assert path.name == names[0]
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == {name: name.encode() for name in names}
    assert pulled(f"owner/model/{folder}{names[0]}") == path
    assert len(hub.downloads) == 3


def test_parts_that_a_hub_lacks_cost_no_download(hub: FakeHub) -> None:
    hub.files |= {f"big-0000{number}-of-00003.gguf": b"" for number in (1, 2)}
    with pytest.raises(CatalogueError, match=r"holds no file 'big-00003-of-00003\.gguf'; it has these"):
        pulled("owner/model/big-00001-of-00003.gguf")
    with pytest.raises(CatalogueError, match=r"is not the first of 3 parts: name 'big-00001-of-00003\.gguf' instead"):
        pulled("owner/model/big-00002-of-00003.gguf")
    assert not hub.downloads


def test_a_missing_file_s_sentence_names_those_there_are(hub: FakeHub) -> None:
    with pytest.raises(CatalogueError, match=r"holds no file 'other\.gguf'; it has these, .*: model\.gguf\.$"):
        pulled("owner/model/other.gguf")
    del hub.files["config.json"]
    with pytest.raises(CatalogueError, match=r"holds no config\.json, .*: model\.gguf\.$"):
        pulled("owner/model")


@pytest.mark.long
def test_a_broken_download_is_continued(hub: FakeHub) -> None:
    hub.break_after = 50_000
    hub.go_on.set()
    folder = pulled("owner/model")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    names, begins = zip(*hub.downloads, strict=True)
    assert names == ("config.json", "model.safetensors", "model.safetensors")
    assert begins[2] > 0
    assert [part.what for part in StoredModel("owner/model").parts()] == ["source"]


def test_a_wrong_checksum_is_no_model_and_the_next_try_fetches_again(hub: FakeHub) -> None:
    hub.promised["model.safetensors"] = b"something else"
    with pytest.raises(CatalogueError, match=r"'model\.safetensors' was not what the hub promised"):
        pulled("owner/model")
    assert StoredModel("owner/model").source() is None
    hub.promised.clear()
    assert (pulled("owner/model") / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_two_at_once_fetch_once(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    num_requested = threading.Semaphore(0)

    class Lock(FileLock):
        def acquire(self, *args: Any, **options: Any) -> Any:
            num_requested.release()
            return super().acquire(*args, **options)

    def fetch(*args: Any) -> None:
        assert all(num_requested.acquire(timeout=60) for _ in range(2))
        real_fetch(*args)

    real_fetch = hub_module.fetch
    monkeypatch.setattr("reader_edge.models.store.FileLock", Lock)
    monkeypatch.setattr(hub_module, "fetch", fetch)
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(pulled, ["owner/model"] * 2))
    assert folders[0] == folders[1]
    assert len(hub.downloads) == 2


def test_an_unsupported_model_costs_no_weights_and_leaves_nothing(hub: FakeHub, cache: Path) -> None:
    hub.files["config.json"] = b'{"model_type": "sphinx"}'
    with pytest.raises(UnsupportedArchitectureError, match="'sphinx' cannot be exported"):
        pulled("owner/model")
    assert [name for name, _ in hub.downloads] == ["config.json"]
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_gated_model_s_sentence_says_where_its_licence_is(hub: FakeHub) -> None:
    hub.error = (403, "GatedRepo")
    with pytest.raises(CatalogueError, match=r"'owner/model' is gated: accept its licence at https://\S+/owner/model,"):
        pulled("owner/model")


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (403, CatalogueError, r"The hub refuses 'owner/model' \(status 403\): log in again"),
        (500, HubUnavailableError, r"The hub does not answer \(status 500\)"),
    ],
)
def test_refusals_and_failures_of_a_hub_differ(
    hub: FakeHub, status: int, error: type[CatalogueError], words: str
) -> None:
    hub.question_error = (status, "")
    with pytest.raises(error, match=words):
        pulled("owner/model")


def _answer(**changes: object) -> bytes:
    """Of one file, config.json; with changes to it, or to what lies about it where it has such a field."""
    whole: dict[str, object] = {"id": "owner/model", "sha": REVISION}
    file: dict[str, object] = {"rfilename": "config.json", "size": 23, "lfs": None}
    file |= {name: value for name, value in changes.items() if name in file}
    whole |= {name: value for name, value in changes.items() if name in whole}
    return json.dumps({"siblings": [file], **whole}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        *(b"<html>Log in to this network", b"null", b"[1]", b"{}", b"[" * 100_000, b'{"id": "x", "siblings": "abc"}'),
        *(_answer(sha=sha) for sha in (None, 5, "../../etc")),
        *(_answer(size=size) for size in (None, "23", -1, 1e400)),
        *(_answer(lfs=lfs) for lfs in ("x", {"size": 1}, {"size": 1, "sha256": "../x", "pointerSize": 1})),
        _answer(rfilename=7),
    ],
)
def test_an_answer_of_another_form_is_shown_in_one_sentence(hub: FakeHub, answer: bytes) -> None:
    hub.answer = answer
    with pytest.raises(HubUnavailableError, match=r"^What the hub answers about 'owner/model' cannot be read \(\w+\):"):
        pulled("owner/model")
    assert hub.downloads == []


@pytest.mark.parametrize(
    "name", ["..\\x.json", "a\0.json", "\ud800.json", ".x.json", "a\x1b[2J.json", "a" * 300 + ".json"]
)
def test_files_whose_names_are_not_plain_are_left_where_they_are(hub: FakeHub, name: str) -> None:
    hub.files = {"config.json": hub.files["config.json"], name: b"{}"}
    assert [path.name for path in pulled("owner/model").iterdir()] == ["config.json"]


def test_a_download_that_the_library_refuses_is_one_sentence(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ValueError("The file is too large")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    with pytest.raises(CatalogueError, match=r"broke off \(ValueError\)"):
        pulled("owner/model")


def test_of_very_many_files_a_sentence_names_some(hub: FakeHub) -> None:
    hub.files = dict.fromkeys((f"{number}.gguf" for number in range(1000)), b"")
    with pytest.raises(CatalogueError, match=r": 0\.gguf, .*, 19\.gguf and 980 more\.$"):
        pulled("owner/model")


def test_a_failed_pull_leaves_nothing_behind(hub: FakeHub, cache: Path) -> None:
    for name in ("owner/other", "no such model"):
        with pytest.raises(CatalogueError):
            pulled(name)
    assert not cache.exists() or not list(cache.iterdir())


def test_an_unknown_model_is_named(hub: FakeHub) -> None:
    with pytest.raises(CatalogueError, match="The hub has no model 'owner/other'"):
        pulled("owner/other")
    with pytest.raises(CatalogueError, match=r"'owner/a\.\.b' is no name"):
        pulled("owner/a..b")


def test_a_full_disk_is_one_sentence(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    with pytest.raises(CatalogueError, match=r"^The disk of '.*' is full: free some space"):
        pulled("owner/model")


def test_what_has_no_room_is_not_begun(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1))
    with pytest.raises(CatalogueError, match=r"102\.4 kB are to come, but the disk of '.*' has 1 bytes left"):
        pulled("owner/model")
    assert hub.downloads == []


def test_a_hub_without_an_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        set_hub(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(HubUnavailableError, match=r"The hub does not answer \(\w+\), so 'owner/model' cannot"):
            pulled("owner/model")
    with pytest.raises(HubUnavailableError, match=r"does not answer \(Connect\w*Error\)"):
        pulled("owner/model")  # nobody listens any more


def test_without_huggingface_hub_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge.models.hub.util.find_spec", lambda name: None)
    with pytest.raises(HubUnavailableError, match=r"pip install 'reader-edge\[export\]'"):
        pulled("owner/model")


MAX_SECONDS = 120  # however busy the machine


@pytest.mark.skipif(sys.platform == "win32", reason="a killed process frees its lock later there")
def test_a_killed_pull_keeps_whole_files_and_leaves_nothing_half(hub: FakeHub) -> None:
    hub.break_after = 50_000
    code = (
        "from huggingface_hub import constants\n"
        "constants.DOWNLOAD_CHUNK_SIZE = 1000\n"
        "from reader_edge.cli import main\n"
        "main(['pull', 'owner/model'])\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_ENDPOINT": hub.url}
    stored = StoredModel("owner/model")
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        end = time.monotonic() + MAX_SECONDS
        while not _has_weights(stored) and time.monotonic() < end:
            time.sleep(0.02)
        process.kill()
    assert stored.source() is None
    assert [part.what for part in stored.parts()] == ["unfinished download"]
    hub.go_on.set()
    assert (pulled("owner/model") / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert [name for name, _ in hub.downloads] == ["config.json", "model.safetensors", "model.safetensors"]
    assert [part.what for part in stored.parts()] == ["source"]
    assert sorted(path.name for path in stored.source().iterdir()) == ["config.json", "model.safetensors"]  # type: ignore[union-attr]


def _has_weights(stored: StoredModel) -> bool:
    return sum(part.num_bytes for part in stored.parts()) > 10_000

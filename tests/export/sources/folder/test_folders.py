"""Folders as they come: in the hub's cache, in shards, half fetched, of another kind, changed while they are read."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from safetensors.torch import load_file, save_file

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.folder.stored_tensors import stored_tensors
from reader_edge_export.trace.tree_config import trace_model
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.conftest import ROOT

INDEX = "model.safetensors.index.json"


def sharded(source: Path) -> Path:
    """The folder with its weights in two shards and an index."""
    weights = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    shards = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(sorted(weights))}
    for shard in sorted(set(shards.values())):
        held = {name: weights[name] for name in shards if shards[name] == shard}
        save_file(held, source / shard, {"format": "pt"})
    (source / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    return source


def hub_cached(source: Path, tmp_path: Path) -> Path:
    """A folder as the hub's cache keeps it: links to files that are named by their checksums."""
    blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "0123abcd"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(source.iterdir())):
        path.rename(blobs / f"{number:064x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:064x}")
    return snapshot


@pytest.mark.long
def test_a_sharded_folder_in_the_hubs_cache_exports_like_the_plain_one(source: Path, tmp_path: Path) -> None:
    options = ExportOptions(precision="fp32", attention="fast")
    export_model(source, tmp_path / "plain", options)
    snapshot = hub_cached(sharded(source), tmp_path)
    snapshot.chmod(0o500)
    (tmp_path / "link").symlink_to(snapshot)
    export_model(tmp_path / "link", tmp_path / "linked", options)
    plain, linked = (ModelPackage.open(tmp_path / name).manifest.files for name in ("plain", "linked"))
    assert linked == plain


def test_a_snapshot_of_the_hubs_cache_is_called_as_its_model(source: Path, tmp_path: Path) -> None:
    snapshot = hub_cached(source, tmp_path)
    (tmp_path / "cache").rename(tmp_path / "models--owner--a-model")
    snapshot = tmp_path / "models--owner--a-model" / "snapshots" / snapshot.name
    assert find_source(snapshot, None).short_name == "a-model"
    (tmp_path / "mine").symlink_to(snapshot)
    assert find_source(tmp_path / "mine", None).short_name == "mine"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors"])
@pytest.mark.parametrize(
    ("replace_file", "words"),
    [
        (lambda path: path.symlink_to("nowhere"), "is a link to 'nowhere', where nothing is"),
        (lambda path: path.symlink_to(path.name), "is a link that leads back to itself"),
        (lambda path: path.symlink_to(os.devnull), "is a link to a device, not to a file"),
        (lambda path: path.mkdir(), "is a folder, not a file"),
        (os.mkfifo, "is a pipe, not a file"),
    ],
)
def test_only_plain_files_are_opened(
    source: Path, name: str, replace_file: Callable[[Path], object], words: str
) -> None:
    (source / name).unlink()
    replace_file(source / name)
    with pytest.raises(ExportError, match=f"{name}' {words}: fetch the model again"):
        find_source(source, None)


SECOND_SHARD = "model-00002-of-00002.safetensors"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456789\n"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", SECOND_SHARD])
def test_a_pointer_of_git_lfs_names_the_command_that_fetches_the_file(source: Path, name: str) -> None:
    folder = source if name == "model.safetensors" else sharded(source)
    (folder / name).write_text(POINTER)
    with pytest.raises(ExportError, match=rf"{name}' is a pointer of git-lfs and not the file .*`git lfs pull`\.$"):
        find_source(folder, None)


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "", "model.bin", 7, "..safetensors"]
)
def test_an_index_that_leads_outside_is_refused(source: Path, name: object) -> None:
    (sharded(source) / INDEX).write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    with pytest.raises(ExportError, match=r"index\.json' names the file .*not one of its folder: do not trust it"):
        find_source(source, None)


def test_a_shard_that_is_missing_is_named(source: Path) -> None:
    (sharded(source) / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ExportError, match=r"model-00002-of-00002\.safetensors' is missing: fetch the model again"):
        find_source(source, None)


def test_shards_without_their_index_are_refused(source: Path) -> None:
    (sharded(source) / INDEX).unlink()
    with pytest.raises(
        ExportError, match=re.escape(f"2 files of weights (model-00001-of-00002.safetensors and others) but no {INDEX}")
    ):
        find_source(source, None)


def test_a_tensor_in_two_shards_is_refused(source: Path) -> None:
    folder = sharded(source)
    first, second = (folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    twice = dict(list(load_file(first).items())[:1])
    save_file(load_file(second) | twice, second, {"format": "pt"})
    with pytest.raises(ExportError, match=f"holds {next(iter(twice))} in two files"):
        find_source(source, None)


def test_an_index_that_names_a_tensor_too_many_is_refused(source: Path) -> None:
    index = json.loads((sharded(source) / INDEX).read_text())
    index["weight_map"]["model.other.weight"] = "model-00001-of-00002.safetensors"
    (source / INDEX).write_text(json.dumps(index))
    with pytest.raises(ExportError, match=r"model\.other\.weight', which its index names"):
        find_source(source, None)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], "holds an adapter .* OUT --adapter"),
        (["one.Q4_K_M.gguf", "two.Q8_0.gguf"], r"holds GGUF files \(one.Q4_K_M.gguf, two.Q8_0.gguf\).* give one"),
        (["model-00001-of-00003.gguf"], "holds GGUF files"),
        (["snapshots/0123/config.json"], "hub cache's folder of a model: give '.*snapshots/0123' instead"),
        (["snapshots/01/adapter_config.json"], "hub cache's folder of a model: give '.*snapshots/01' instead"),
        (["modules.json"], "holds no config.json"),
    ],
)
def test_a_folder_of_another_kind_is_one_sentence(tmp_path: Path, files: list[str], words: str) -> None:
    for name in files:
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    with pytest.raises(ExportError, match=f"^[^\n]*{words}[^\n]*$"):
        find_source(tmp_path / "folder", None)


def test_a_package_is_refused_with_what_it_was_exported_from() -> None:
    demo = ROOT / "models" / "demo" / "package"
    name = ModelPackage.open(demo).manifest.source_name
    with pytest.raises(ExportError, match=f"is a package: give what it was exported from, '{name}'"):
        find_source(demo, None)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "consolidated.safetensors"])
def test_weights_under_another_name_are_refused_before_anything_is_loaded(source: Path, name: str) -> None:
    (source / "model.safetensors").rename(source / name)
    with pytest.raises(
        ExportError, match=rf"^[^\n]* holds {name} but no model\.safetensors, [^\n]*: give the folder [^\n]*$"
    ):
        find_source(source, None)


def test_an_adapter_beside_a_model_is_not_left_out_without_a_word(source: Path) -> None:
    (source / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere", "peft_type": "LORA"}')
    with pytest.raises(ExportError, match=r"^[^\n]*a model and an adapter .* or remove adapter_config\.json[^\n]*$"):
        find_source(source, None)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "weights.pth"])
def test_pickles_are_refused_with_a_way_out(source: Path, name: str) -> None:
    (source / "model.safetensors").rename(source / name)
    with pytest.raises(ExportError, match=rf"{name}, a pickle that may run code: .*save_pretrained"):
        find_source(source, None)


FP32 = ExportOptions("fp32", check="none")


def export_during(change: Callable[[], object], source: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Export a model that something happens to, before its weights are read."""

    def traced(*arguments: Any, **named: Any) -> object:
        change()
        return trace_model(*arguments, **named)

    monkeypatch.setattr("reader_edge_export.package_export.trace_model", traced)
    export_model(source, out, FP32)


def replace_weights(path: Path) -> None:
    """By a file of the same size, as a download does."""
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
@pytest.mark.parametrize("change", [Path.unlink, replace_weights, replace_by_pipe])
def test_weights_that_change_meanwhile_are_refused(
    change: Callable[[Path], object], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = source / "model.safetensors"
    with pytest.raises(ExportError, match=r"model\.safetensors' changed while the model was exported: export it again"):
        export_during(lambda: change(weights), source, tmp_path / "out" / "package", monkeypatch)
    assert list((tmp_path / "out").iterdir()) == []


def test_weights_that_become_shorter_do_not_end_the_process(source: Path) -> None:
    weights = source / "model.safetensors"
    tensor = stored_tensors(source)["model.embed_tokens.weight"]
    values = tensor.read()
    os.truncate(weights, 8)
    with pytest.raises(ExportError, match=r"changed while it was read: export it again when it is whole"):
        tensor.read()
    assert values.isfinite().all()  # in memory of their own


def test_files_beside_the_weights_may_change(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = source / "log.txt"
    log.write_text("exporting")
    export_during(lambda: log.write_text("still exporting"), source, tmp_path / "out", monkeypatch)
    assert (tmp_path / "out").is_dir()


@pytest.mark.skipif(not hasattr(os, "setresuid") or os.getuid() != 0, reason="only root can become nobody")
@pytest.mark.parametrize("name", ["model.safetensors", ""])
def test_a_source_that_the_user_may_not_read_is_refused(name: str, source: Path, tmp_path: Path) -> None:
    place, mode = source / name, (source / name).stat().st_mode
    place.chmod(0)
    os.setresuid(65534, 65534, 0)
    try:
        with pytest.raises(ExportError, match=r"cannot be read \(Permission denied\)"):
            export_model(source, tmp_path / "out", FP32)
    finally:
        os.setresuid(0, 0, 0)
        place.chmod(mode)
    assert not (tmp_path / "out").exists()


def test_errors_of_reading_name_the_source(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("reader_edge_export.pipeline.find_source", fail)
    with pytest.raises(ExportError, match=r"' cannot be read \(Input/output error\): see to who may read it"):
        export_model(source, tmp_path / "out", FP32)


def test_a_file_that_the_limit_of_memory_forbids_is_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("safetensors.safe_open", Mock(side_effect=MemoryError))
    with pytest.raises(ExportError, match=r"model.safetensors' cannot be loaded: .* bytes; raise the limit of memory"):
        stored_tensors(source)

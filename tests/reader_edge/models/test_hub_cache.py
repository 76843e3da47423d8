"""Models in the cache of huggingface_hub, and what names of models mean."""

import json
import shutil
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from huggingface_hub import constants

from reader_edge.cli import main
from reader_edge.models.catalogue import CATALOGUE, Origin, canonical, find_origin, is_model_name, similar_name
from reader_edge.models.exported import ModelSource
from reader_edge.models.hub_cache import hub_cache
from reader_edge.models.model_source import find_source, find_stored, model_name
from reader_edge.models.pull import found_here, pulled
from reader_edge_runtime.errors import CatalogueError, HubUnavailableError
from tests.reader_edge.models.conftest import FakeHub, set_hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = ("config.json", "model.safetensors", "tokenizer.json")


class HubCache:
    """A cache with a model, "owner/model", of links into blobs/."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "models--owner--model"
        self.snapshot = self.model / "snapshots" / COMMIT
        self.snapshot.mkdir(parents=True)
        (self.model / "blobs").mkdir()
        (self.model / "refs").mkdir()
        (self.model / "refs" / "main").write_text(COMMIT)
        for name in FILES:
            self.add(name)

    def add(self, name: str, content: str = "{}") -> None:
        (self.model / "blobs" / name).write_text(content)
        (self.snapshot / name).symlink_to(f"../../blobs/{name}")


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubCache:
    folder = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    return HubCache(folder)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        set_hub(monkeypatch, f"http://127.0.0.1:{unused.getsockname()[1]}")


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, "xdg/huggingface/hub"),
        ({"XDG_CACHE_HOME": ""}, "home/.cache/huggingface/hub"),
        ({"HF_HOME": "$HOME/mine"}, "home/mine/hub"),
        ({"HF_HOME": "a", "HUGGINGFACE_HUB_CACHE": "~/b"}, "home/b"),
        ({"HF_HUB_CACHE": "~/c", "HUGGINGFACE_HUB_CACHE": "b"}, "home/c"),
    ],
)
def test_the_cache_is_where_huggingface_hub_has_it(
    variables: dict[str, str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "xdg"), **variables}.items():
        monkeypatch.setenv(name, value)
    assert hub_cache() == tmp_path / place


def test_a_model_in_the_cache_is_found_by_its_id_without_the_network(cached: HubCache, runner: CliRunner) -> None:
    assert pulled("owner/model") == find_stored("owner/model") == cached.snapshot
    assert find_source("owner/model") == ModelSource(cached.snapshot, "owner/model")
    assert runner.invoke(main, ["pull", "owner/model"]).stdout == f"{cached.snapshot}\n"


def test_an_export_tells_which_folder_was_read(cached: HubCache, runner: CliRunner, tmp_path: Path) -> None:
    result = runner.invoke(main, ["export", "owner/model", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"'owner/model' is read from '{cached.snapshot}'.\n")


def test_a_name_of_the_catalogue_is_found_there_too(cached: HubCache) -> None:
    place = cached.model.rename(cached.folder / "models--Qwen--Qwen3-0.6B")
    assert found_here("qwen3:0.6b") == place / "snapshots" / COMMIT


def test_a_single_gguf_file_is_found_there(cached: HubCache, no_hub: None) -> None:
    cached.add("model.gguf")
    assert pulled("owner/model/model.gguf") == cached.snapshot / "model.gguf"
    with pytest.raises(HubUnavailableError, match=r"lacks other\.gguf, which `hf download owner/model other\.gguf`"):
        pulled("owner/model/other.gguf")


def test_a_file_in_parts_is_found_there_when_all_are(cached: HubCache, no_hub: None) -> None:
    first, second = (f"big-0000{number}-of-00002.gguf" for number in (1, 2))
    cached.add(first)
    with pytest.raises(HubUnavailableError, match=rf"lacks {second}, which `hf download owner/model {second}`"):
        pulled(f"owner/model/{first}")
    cached.add(second)
    assert pulled(f"owner/model/{first}") == cached.snapshot / first


def test_a_file_in_a_folder_is_found_there_and_leads_nowhere_else(cached: HubCache, no_hub: None) -> None:
    (cached.snapshot / "Q8_0").mkdir()
    path = cached.snapshot / "Q8_0" / "model.gguf"
    with pytest.raises(HubUnavailableError, match=rf"'{cached.snapshot}' lacks Q8_0/model\.gguf, which"):
        pulled("owner/model/Q8_0/model.gguf")
    path.symlink_to("../../../blobs/config.json")
    assert pulled("owner/model/Q8_0/model.gguf") == path
    path.unlink()
    path.symlink_to("/etc/hosts")
    with pytest.raises(CatalogueError, match=r"leads to '/etc/hosts', out of the Hugging Face cache"):
        pulled("owner/model/Q8_0/model.gguf")


def test_without_a_note_of_the_branch_the_only_revision_is_taken(cached: HubCache) -> None:
    (cached.model / "refs" / "main").unlink()
    assert found_here("owner/model") == cached.snapshot
    (cached.model / "snapshots" / ("f" * 40)).mkdir()
    with pytest.raises(CatalogueError, match=f"holds 2 revisions .* give one of them by its path, .*{'f' * 40}'"):
        found_here("owner/model")


@pytest.mark.parametrize("name", FILES)
def test_what_a_snapshot_lacks_is_shown_where_it_cannot_be_fetched(cached: HubCache, no_hub: None, name: str) -> None:
    (cached.model / "blobs" / name).unlink()
    with pytest.raises(HubUnavailableError) as caught:
        pulled("owner/model")
    shown = f"in part: '{cached.snapshot}' lacks {name}, which `hf download owner/model` brings."
    assert str(caught.value).endswith(shown)


def test_a_missing_shard_is_shown_by_name(cached: HubCache, no_hub: None) -> None:
    (cached.snapshot / "model.safetensors").unlink()
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    cached.add("model.safetensors.index.json", json.dumps({"weight_map": shards}))
    cached.add(shards["a"])
    with pytest.raises(HubUnavailableError, match=r"lacks model-00002-of-00002\.safetensors, which"):
        pulled("owner/model")
    cached.add(shards["b"])
    assert pulled("owner/model") == cached.snapshot


def test_a_snapshot_in_part_is_no_hindrance_where_there_is_a_network(cached: HubCache, hub: FakeHub) -> None:
    (cached.snapshot / "model.safetensors").unlink()
    folder = pulled("owner/model")
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert not folder.is_relative_to(cached.folder)


def test_where_it_was_looked_for_is_shown(cached: HubCache, no_hub: None) -> None:
    with pytest.raises(HubUnavailableError, match=f"connect .* Nor is it in the Hugging Face cache '{cached.folder}'"):
        pulled("owner/other")


@pytest.mark.parametrize("name", ["config.json", "further", "additional_chat_templates/x.jinja"])
def test_a_link_out_of_the_cache_is_not_followed(cached: HubCache, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("{}")
    (cached.snapshot / name).parent.mkdir(exist_ok=True)
    (cached.snapshot / name).unlink(missing_ok=True)
    (cached.snapshot / name).symlink_to(tmp_path / "secret")
    with pytest.raises(CatalogueError, match=r"leads to '.*secret', out of the Hugging Face cache"):
        pulled("owner/model")


@pytest.mark.parametrize("place", ["models--owner--model", f"models--owner--model/snapshots/{COMMIT}"])
def test_a_folder_elsewhere_is_not_followed(cached: HubCache, tmp_path: Path, place: str) -> None:
    shutil.move(cached.folder / place, tmp_path / "elsewhere")
    (cached.folder / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CatalogueError, match="out of the Hugging Face cache"):
        pulled("owner/model")


def test_the_cache_may_be_a_link_with_blobs(cached: HubCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cached.folder / "blobs").mkdir()
    blob = cached.model / "blobs" / "model.safetensors"
    blob.rename(cached.folder / "blobs" / "shared")
    blob.symlink_to("../../blobs/shared")
    (tmp_path / "link").symlink_to(cached.folder)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "link"))
    assert pulled("owner/model") == tmp_path / "link" / cached.snapshot.relative_to(cached.folder)


@pytest.mark.parametrize("commit", ["../../../elsewhere", "", "0" * 39, "0" * 200])
def test_a_note_that_names_no_commit_is_refused(cached: HubCache, commit: str) -> None:
    (cached.model / "refs" / "main").write_text(commit)
    with pytest.raises(CatalogueError, match="main' names no commit: remove it"):
        pulled("owner/model")


def test_what_is_named_in_another_way_says_how(cached: HubCache) -> None:
    cached.add("reader_edge.json")
    with pytest.raises(CatalogueError, match=f"is a package already: give its folder '{cached.snapshot}'"):
        pulled("owner/model")
    for name in ("reader_edge.json", "config.json"):
        (cached.snapshot / name).unlink()
    cached.add("model-q4_0.gguf")
    with pytest.raises(CatalogueError, match=r"as GGUF files .*: name one of them, as owner/model/model-q4_0\.gguf\."):
        pulled("owner/model")


def test_a_snapshot_given_by_its_path_is_called_as_its_model(cached: HubCache, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_name(str(cached.snapshot)) == "model"
    monkeypatch.chdir(cached.snapshot)
    assert model_name(".") == "model"
    assert model_name(str(cached.snapshot.parent)) == "snapshots"


def test_huggingface_hub_looks_there_too(cached: HubCache, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import try_to_load_from_cache

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cached.folder))
    found = try_to_load_from_cache("owner/model", "config.json", cache_dir=cached.folder)
    assert found == str(cached.snapshot / "config.json")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("smollm2:135m:latest", "smollm2:135m"),
        ("library/smollm2:135m", "smollm2:135m"),
        ("ollama.com/library/smollm2", "smollm2"),
        ("smollm2-135m", "smollm2:135m"),
        ("smollm2:135m ", "smollm2:135m"),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/", "Qwen/Qwen3-0.6B"),
        ("hf.co/owner/name-GGUF:Q4_K_M", "owner/name-GGUF"),
        ("owner/name:latest", "owner/name"),
        ("/a/b", None),
        ("sphinx", None),
    ],
)
def test_a_name_as_others_spell_it_is_recognised(name: str, meant: str | None) -> None:
    assert not is_model_name(name)
    assert similar_name(name) == meant


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_name_of_the_catalogue_means_one_model_of_the_hub(name: str) -> None:
    assert is_model_name(name)
    assert canonical(name) == name
    assert find_origin(find_origin(name).hub_id) == Origin(CATALOGUE[name].hub_id)


def test_no_two_names_mean_the_same() -> None:
    assert len({origin.hub_id for origin in CATALOGUE.values()}) == len(CATALOGUE)


def test_large_letters_are_small_ones() -> None:
    assert canonical("SmolLM2:135M") == "smollm2:135m"
    assert find_origin("SmolLM2:135M") == CATALOGUE["smollm2:135m"]
    assert canonical("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


def test_a_file_of_a_repository_is_named_by_its_path() -> None:
    for file in ("model.Q8_0.gguf", "Q8_0/model.gguf"):
        assert find_origin(f"owner/name/{file}") == Origin("owner/name", file)


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "../..", "a/..", "a/b/..", "a/../x.gguf", "a/b/../x.gguf", "/a/b", "a\\b", "C:x", "demo", "a/b/c"],
)
def test_paths_are_no_names(text: str) -> None:
    assert not is_model_name(text)


def test_a_name_without_its_size_is_answered_with_the_sizes() -> None:
    assert is_model_name("gemma3")
    for name in ("gemma3", "gemma3:70b"):
        with pytest.raises(CatalogueError, match=rf"no model '{name}': there is gemma3:270m, gemma3:1b;"):
            find_origin(name)


def test_an_unknown_name_is_answered_with_where_the_known_ones_are() -> None:
    with pytest.raises(CatalogueError, match=r"no model 'sphinx:1b': `reader-edge pull --help` names them"):
        find_origin("sphinx:1b")

"""`export --speculator auto` finds the draft that is published for a model, or names it."""

from pathlib import Path

import pytest

from reader_edge.models.catalogue import CATALOGUE
from reader_edge.models.exported import ModelSource
from reader_edge.models.speculators import PUBLISHED, found_speculator, nothing_to_take, published_speculators
from reader_edge_runtime.errors import CatalogueError
from tests.conftest import ROOT

_DRAFTS = PUBLISHED["Qwen/Qwen3-4B"]


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.parametrize(
    ("path", "name", "is_known"),
    [
        ("x", "qwen3:4b", True),
        ("x", "Qwen/Qwen3-4B", True),
        ("x", "unsloth/Qwen3-4B-GGUF/Qwen3-4B-UD-Q4_K_XL.gguf", True),
        ("models/Qwen3-4B", None, True),
        ("models/qwen3-4b-q4_k_m.gguf", None, True),
        ("models/Qwen3-4B-Instruct-2507", None, False),
        ("x", "qwen3:1.7b", False),
    ],
)
def test_a_model_is_known_by_its_name_or_that_of_its_file(path: str, name: str | None, is_known: bool) -> None:
    assert published_speculators(ModelSource(Path(path), name)) == (_DRAFTS if is_known else ())


def test_a_draft_in_the_hubs_cache_is_taken_without_a_tokenizer(
    hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = (
        hub / f"models--{_DRAFTS[1].replace('/', '--')}" / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    )
    snapshot.mkdir(parents=True)
    source = ModelSource(tmp_path / "x", "qwen3:4b")
    (snapshot / "config.json").write_text("{}")
    assert found_speculator("auto", source) == "auto"  # its weights are not there
    assert capsys.readouterr().err == ""
    (snapshot / "model.safetensors").write_bytes(b"")
    assert found_speculator("auto", source) == snapshot
    assert _DRAFTS[1] in capsys.readouterr().err
    assert found_speculator(_DRAFTS[1], ModelSource(tmp_path / "gemma")) == snapshot


def test_a_draft_beside_the_model_is_taken(tmp_path: Path) -> None:
    beside = tmp_path / "Qwen3-4B-DFlash-b16"
    beside.mkdir()
    assert found_speculator("auto", ModelSource(tmp_path / "Qwen3-4B")) == beside


def test_a_name_that_is_not_here_is_refused_and_a_folder_is_itself(tmp_path: Path) -> None:
    source = ModelSource(tmp_path / "gemma")
    with pytest.raises(CatalogueError, match="`hf download owner/draft`"):
        found_speculator("owner/draft", source)
    assert found_speculator(tmp_path, source) == tmp_path
    assert found_speculator("", source) == ""  # which the export refuses


def test_what_could_be_taken_is_named_in_one_sentence(tmp_path: Path) -> None:
    words = nothing_to_take(ModelSource(tmp_path / "Qwen3-4B"))
    assert all(f"`hf download {draft}`" in words for draft in _DRAFTS)
    assert "`reader-edge train-drafter`" in nothing_to_take(ModelSource(tmp_path / "gemma"))


def test_of_other_models_nothing_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert found_speculator("auto", ModelSource(tmp_path / "gemma")) == "auto"
    assert capsys.readouterr().err == ""


def test_the_page_of_speculators_names_them_all() -> None:
    page = (ROOT / "docs/how-to/speculators.md").read_text("utf-8")
    assert [each for model, drafts in PUBLISHED.items() for each in (model, *drafts) if each not in page] == []
    assert {model for model in PUBLISHED if model in {origin.hub_id for origin in CATALOGUE.values()}} >= set(
        list(PUBLISHED)[:2]
    )

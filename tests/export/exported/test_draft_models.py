"""Draft models and all sources of drafts together: refused where they cannot draft, and without a say in answers."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge import DraftConfig, Engine, EngineConfig, GenerationConfig
from reader_edge.cli import main
from reader_edge.models.model_source import further_sources
from reader_edge.prompts import EvalPrompt
from reader_edge.verify import variants
from reader_edge.verify.proof import prove
from reader_edge.warmup_answers import answer_all
from reader_edge_export import ExportOptions, export_model
from reader_edge_runtime import DraftSources
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.errors import DraftModelError, IntegrityError, PackageError
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME
from reader_edge_runtime.package.manifest_file import read_manifest, write_manifest
from tests.export.conftest import Exported, TinyModel
from tests.export.speculators.speculator_folders import write_mlp

UNMEASURED = EngineConfig(is_calibrated=False)


@pytest.fixture(scope="session")
def package(exported: Exported) -> Path:
    KernelLoader.shared().wait()  # until then nothing is drafted
    return exported("llama", "int8", "exact")


@pytest.fixture(scope="session")
def drafting(exported: Exported) -> Path:
    """The same weights in fp32, which nearly always say the same."""
    return exported("llama", "fp32", "exact")


def test_a_draft_model_brings_tokens_and_changes_none(package: Path, drafting: Path) -> None:
    config = GenerationConfig(max_tokens=60, ignores_eos=True)
    unaided = DraftConfig(is_history_used=False, is_logits_used=False)
    engine = Engine.load(package, UNMEASURED, unaided, sources=DraftSources(draft_model=drafting))
    drafted, plain = (engine.generate("the cat", replace(config, is_drafted=each)) for each in (True, False))
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted_by_source["draft model"] > 0


@pytest.mark.long
def test_a_proof_has_runs_for_a_draft_model(package: Path, drafting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "DRAFTERS", ("none",))
    engine = Engine.load(package, UNMEASURED)
    further = further_sources(engine, DraftSources(draft_model=drafting))
    report = prove(engine, [EvalPrompt("the cat"), EvalPrompt("tides")], 12, further=further)
    assert report.counts.divergences == 0
    runs = [run for run in report.runs if run.setting.drafter == "all sources + draft model"]
    assert sum(run.nodes_by_source.get("draft model", 0) for run in runs) > 0


def test_draft_models_that_do_not_fit_are_refused(package: Path, demo_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DraftModelError, match=r"has another tokenizer than .*same family.*\.$"):
        Engine.load(package, UNMEASURED, sources=DraftSources(draft_model=demo_folder))
    with pytest.raises(DraftModelError, match=r"is the very model .* give a smaller one\.$"):
        Engine.load(package, UNMEASURED, sources=DraftSources(draft_model=package))
    with pytest.raises(PackageError, match=r"There is nothing at .*none': give a package"):
        Engine.load(package, UNMEASURED, sources=DraftSources(draft_model=tmp_path / "none"))


def test_a_model_whose_states_cannot_be_taken_back_is_refused(package: Path, drafting: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(drafting, tmp_path / "copy"))
    manifest = read_manifest(copy)
    recurrent = Layer.recurrent({"conv": (3, 8)}, {"conv": 8})
    write_manifest(copy, replace(manifest, layers=(recurrent,) * manifest.num_layers))
    with pytest.raises(
        DraftModelError, match=r"'.*copy' has recurrent layers, .* draft with a model of attention alone"
    ):
        Engine.load(package, UNMEASURED, sources=DraftSources(draft_model=copy))


def test_a_damaged_draft_model_is_refused(package: Path, drafting: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(drafting, tmp_path / "copy"))
    with (copy / "model.onnx").open("r+b") as file:
        file.write(b"\0")
    with pytest.raises(IntegrityError, match="differs from its checksum"):
        Engine.load(package, UNMEASURED, sources=DraftSources(draft_model=copy))


def test_commands_tell_in_one_sentence_why_a_draft_model_is_refused(package: Path, demo_folder: Path) -> None:
    result = CliRunner().invoke(main, ["run", str(package), "-p", "the cat", "--draft-model", str(demo_folder)])
    assert result.exit_code == 1
    assert "has another tokenizer" in result.stderr


QUESTIONS = [EvalPrompt("the cat"), EvalPrompt("tides rise and fall"), EvalPrompt("def add(a, b): return")]


@pytest.mark.long
def test_every_source_together_changes_nothing(
    tiny_model: TinyModel, exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KernelLoader.shared().wait()  # until then nothing is drafted
    write_mlp(tmp_path / "speculator")
    package = tmp_path / "package"
    export_model(tiny_model("llama"), package, ExportOptions("int8", speculator=tmp_path / "speculator"))
    engine = Engine.load(package, UNMEASURED)
    answer_all(engine, QUESTIONS[:1], GenerationConfig(max_tokens=30), 100).write(engine.package)
    monkeypatch.setattr(variants, "DRAFTERS", ("none",))
    engine = Engine.load(package, UNMEASURED)
    assert SUCCESSORS_NAME in engine.package.manifest.files
    sources = DraftSources(draft_model=exported("llama", "fp32", "exact"))
    report = prove(engine, QUESTIONS, 10, further=further_sources(engine, sources))
    assert report.counts.divergences == 0
    assert report.logit_rows_bit_equal
    assert report.is_promise_kept
    together = [run for run in report.runs if run.setting.drafter == "all sources + speculator + draft model"]
    every = {*variants.VARIANTS, *variants.ARRIVAL_VARIANTS, variants.RESTORED}
    assert {run.setting.variant for run in together} == every
    nodes = set().union(*(run.nodes_by_source for run in together))
    assert nodes >= {"context", "history", "datastore", "logits", "speculator", "draft model"}

"""The proof with every source of drafts together: they change nothing but speed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reader_edge import Engine, EngineConfig, GenerationConfig
from reader_edge.models.model_source import further_sources
from reader_edge.own_answers import answer_all
from reader_edge.prompts import EvalPrompt
from reader_edge.verify import variants
from reader_edge.verify.proof import prove
from reader_edge_export import ExportOptions, export_model
from reader_edge_runtime import DraftSources
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME
from tests.export.speculators.speculator_folders import write_mlp

QUESTIONS = [EvalPrompt("the cat"), EvalPrompt("tides rise and fall"), EvalPrompt("def add(a, b): return")]
UNMEASURED = EngineConfig(is_calibrated=False)


@pytest.mark.long
def test_every_source_together_changes_nothing(
    tiny_model: Callable[[str], Path],
    exported: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
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
    assert {run.setting.variant for run in together} == {*variants.VARIANTS, *variants.ARRIVAL_VARIANTS}
    nodes = set().union(*(run.nodes_by_source for run in together))
    assert nodes >= {"context", "history", "datastore", "logits", "speculator", "draft model"}

"""What `verify` proves holds over stages of every precision: drafted, greedy and sampled, in any order of arrival."""

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from reader_edge.prompts import EvalPrompt
from reader_edge.verify.proof import prove
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.split.split_package import split_package
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.assembly import make_decoder
from reader_edge_runtime.drafting.drafter import NoDrafter
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.pipeline.pass_frame import PassFrame
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.export.gguf_models import build_source, write_model
from tests.stages_here import StagesHere, pipeline_here

QUESTIONS = [EvalPrompt("# tar\n\n"), EvalPrompt("1. Save the file.\n2. Save the file.\n3.")]
SAMPLED = GenerationConfig(max_tokens=12, sampling=SamplingConfig(temperature=0.9, seed=5))
PLAIN = EngineConfig(threads=1, is_drafted=False)


def exported_package(precision: str, folder: Path) -> Path:
    changes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
    model, source = build_source("llama", folder / "source", **changes), folder / "source"
    if precision == "keep":
        source = write_model(model, source, folder / "model.gguf", Kind.Q4_K)
    export_model(source, folder / "package", ExportOptions(precision, check="none"))
    return folder / "package"


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("precision", ["int8", "int4", "keep", "fp32"])
def test_a_pipeline_is_lossless_and_answers_as_one_box(precision: str, num_stages: int, tmp_path: Path) -> None:
    package = ModelPackage.open(exported_package(precision, tmp_path))
    split_package(package.folder, tmp_path / "out", num_stages)
    piped, whole = pipeline_here(tmp_path / "out"), HostTarget.open(package, 1)

    def engine(target: Target) -> Engine:
        return Engine(package, Tokenizer.open(package), make_decoder(target, NoDrafter(), PLAIN))

    report = prove(engine(piped), QUESTIONS, 8)
    assert report.is_promise_kept
    assert sum(run.counts.tokens_compared for run in report.runs) > 1000
    assert isinstance(piped.in_flight.following, StagesHere)
    frames = [PassFrame.unpacked(memoryview(frame)) for frame in piped.in_flight.following.frames]
    assert sum(frame.wanted.num_before > 0 for frame in frames) > 100  # second passes
    for config in (SAMPLED, GenerationConfig(max_tokens=12)):
        texts = [question.prompt for question in QUESTIONS]
        found, expected = ([each.token_ids for each in engine(t).generate_batch(texts, config)] for t in (piped, whole))
        assert found == expected

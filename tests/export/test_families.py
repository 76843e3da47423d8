"""Of every family: folders in FP8, adapters, and that drafts change no answer; the table that says so.

python -m tests.export.test_families    # the rows of docs/reference/models.md, but for their first and last cell
"""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.pytorch_utils import Conv1D

from reader_edge.prompts import EvalPrompt
from reader_edge.verify import variants
from reader_edge.verify.proof import prove
from reader_edge_export.sources.adapters.adapter import find_adapter
from reader_edge_export.sources.adapters.merged_weights import merged
from reader_edge_export.sources.architectures import SUPPORTED, check_options
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.gguf.config import MODELS
from reader_edge_runtime import Engine
from reader_edge_runtime.errors import ConfigError
from tests.conftest import ROOT
from tests.export.conftest import Exported, TinyModel
from tests.export.gguf_models import GGUF_MODELS
from tests.export.source_models import load_folder, load_model
from tests.export.sources.adapters.adapter_files import RANK, added, draw_factors, matrices, peft_tensors, write_peft
from tests.export.sources.quantized.test_float_formats import WRITERS, quantize
from tests.tiny_models import TINY_CONFIGS, tiny_config

WITHOUT_FP8 = ("gpt2",)  # whose matrices have their inputs first
WITHOUT_ADAPTERS: tuple[str, ...] = ()
_QUESTIONS = [EvalPrompt("1. Save the file.\n2. Save the file.\n3."), EvalPrompt("the cat sat on the mat, the cat")]


@pytest.mark.long
@pytest.mark.parametrize("model_type", [each for each in TINY_CONFIGS if each not in WITHOUT_FP8])
def test_a_folder_in_fp8_is_the_model_of_its_widened_weights(
    model_type: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    source, plain = (Path(shutil.copytree(tiny_model(model_type), tmp_path / each)) for each in ("source", "plain"))
    quantize(source, plain, WRITERS["fp8 in small blocks"])
    found = find_source(source, None)
    weights, expected = dict(load_model(found).named_parameters()), dict(load_folder(plain).named_parameters())
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], values) for name, values in expected.items())
    assert found.weight_types[0] == "FP8"


@pytest.mark.long
@pytest.mark.parametrize("model_type", [each for each in TINY_CONFIGS if each not in WITHOUT_ADAPTERS])
def test_an_adapter_adds_to_every_matrix(model_type: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    folder = tiny_model(model_type)
    module = load_folder(folder)
    factors = draw_factors(module)
    found = find_source(folder, None)
    adapter = find_adapter(write_peft(tmp_path / "adapter", peft_tensors(factors)), found)
    weights = merged(found.open_model(), adapter)[0].weights
    for name, matrix in matrices(module).items():
        values = weights.read(f"{name}.weight")
        is_turned = isinstance(module.get_submodule(name), Conv1D)
        wanted = added(matrix, *factors[name], scale=8 / RANK)
        np.testing.assert_allclose(values.T if is_turned else values, wanted, atol=2e-6, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_drafts_change_no_answer(model_type: str, exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of a batch come and go, greedy and sampled, drafted and plain."""
    monkeypatch.setattr(variants, "DRAFTERS", ())
    with Engine.load(exported(model_type, "int8", "exact", is_checked=False)) as engine:
        report = prove(engine, _QUESTIONS, 24)
    assert report.counts.divergences == 0
    assert report.logit_rows_bit_equal
    assert report.num_drafted > 0
    assert report.counts.tokens_compared > 100


def families() -> Mapping[str, list[str]]:
    """By model type: its names in GGUF files, the precisions of its packages, and what was tried above."""
    rows = {}
    for model_type in SUPPORTED:
        in_files = [name for name, (read_as, _) in MODELS.items() if read_as == model_type]
        in_files = in_files or list(GGUF_MODELS.get(model_type, ("not read",))[:1])
        try:
            check_options(tiny_config(model_type), "fp16", "fast")
            precisions = "all"
        except ConfigError:
            precisions = "CPU alone"
        tried = ["no" if model_type in without else "yes" for without in (WITHOUT_FP8, WITHOUT_ADAPTERS, ())]
        rows[model_type] = [f"`{model_type}`", ", ".join(in_files), precisions, *tried]
    return rows


def test_the_page_of_families_says_what_was_tried() -> None:
    page = (ROOT / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[2:-2]] for line in page.splitlines() if line.startswith("| ")]
    assert [row for row in rows if row[0].startswith("`")] == list(families().values())


if __name__ == "__main__":
    sys.stdout.writelines(f"{' | '.join(row)}\n" for row in families().values())

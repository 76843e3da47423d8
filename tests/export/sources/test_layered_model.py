"""A source that is run one layer at a time computes what the whole model does, and holds no weights."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch

from reader_edge_export.calibration.calibration import Calibration, InputMoments
from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from tests.export.source_models import chain_logits, layered, load_folder, open_source
from tests.tiny_models import TINY_MODELS

TEXTS = [list(range(3, 40)), [7], list(range(90, 60, -1))]


@pytest.mark.parametrize("model_type", TINY_MODELS)
def test_logits_are_those_of_the_whole_model(model_type: str, tiny_model: Callable[[str], Path]) -> None:
    whole = load_folder(tiny_model(model_type))
    for token_ids, logits in zip(TEXTS, layered(tiny_model(model_type)).logits(TEXTS), strict=True):
        torch.testing.assert_close(logits, chain_logits(whole, token_ids), rtol=1e-5, atol=1e-5)


def test_matrices_take_no_memory_before_and_after(tiny_model: Callable[[str], Path]) -> None:
    model = layered(tiny_model("llama"))
    matrices = [parameter for parameter in model.source.skeleton.parameters() if parameter.ndim > 1]
    for _ in model.logits(TEXTS):
        held = [matrix for matrix in model.source.skeleton.parameters() if matrix.untyped_storage().nbytes() > 1000]
        assert len(held) <= 1  # the head
    assert {matrix.untyped_storage().nbytes() for matrix in matrices} == {4}


def test_layers_that_are_not_found_are_one_sentence(tiny_model: Callable[[str], Path]) -> None:
    source = open_source(tiny_model("llama"))
    source.skeleton.config.num_hidden_layers = 77
    with pytest.raises(UnsupportedArchitectureError, match="The layers of 'llama' were not found"):
        LayeredModel(source)


def test_a_calibration_whose_file_was_cut_is_one_sentence() -> None:
    file = BytesIO()
    calibration = Calibration(file)
    moments = InputMoments([np.eye(4, dtype=np.float32)], 3)
    calibration.add_inputs(["a"], moments)
    np.testing.assert_array_equal(calibration.inputs_of("a").grams[0], moments.grams[0])
    file.truncate(10)
    with pytest.raises(ExportError, match="became shorter"):
        calibration.inputs_of("a")

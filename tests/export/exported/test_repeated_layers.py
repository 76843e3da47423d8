"""A package made of one layer computes what a model with that layer several times would."""

import re
from pathlib import Path

import numpy as np
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.random_models.repeated_layers import repeat_layer, streamed_bytes
from reader_edge_export import ExportOptions, export_model
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.export.whole_models import chain_logits
from tests.tiny_models import VOCAB_SIZE, build_tiny_model

TOKENS = [5, 9, 13, 21, 34]


def test_a_repeated_layer_is_a_deeper_model_with_a_wider_vocabulary(tmp_path: Path) -> None:
    source, package = _repeated(tmp_path, ExportOptions("fp16", "fast"))
    _assert_deeper(package, source, tmp_path, tolerance=5e-3)
    head, layer = 2 * 64 * VOCAB_SIZE, streamed_bytes(ModelPackage.open(tmp_path / "one")) - 2 * 64 * VOCAB_SIZE
    assert streamed_bytes(package) == 3 * layer + head + 2 * 64 * 100


def _repeated(tmp_path: Path, options: ExportOptions) -> tuple[Path, ModelPackage]:
    """A source of one layer, and its package made three layers deep."""
    source = build_tiny_model("llama", tmp_path / "source", num_hidden_layers=1, tie_word_embeddings=False)
    export_model(source, tmp_path / "one", options)
    package = repeat_layer(ModelPackage.open(tmp_path / "one"), tmp_path / "three", 3, VOCAB_SIZE + 100)
    package.check_files()
    return source, package


def _assert_deeper(package: ModelPackage, source: Path, tmp_path: Path, tolerance: float) -> None:
    target = HostTarget.open(package, 1)
    cache = target.new_cache(1, len(TOKENS))
    wanted = Pass(0, [DraftTree.chain(TOKENS)], [range(len(TOKENS))], wants_logits=True)
    logits = target.forward(cache, wanted).wanted_logits[0]

    expected = chain_logits(_three_layers(source, tmp_path / "deeper"), TOKENS).numpy()
    assert logits.shape == (len(TOKENS), VOCAB_SIZE + 100)
    np.testing.assert_allclose(logits[:, :VOCAB_SIZE], expected, atol=tolerance * np.abs(expected).max())
    np.testing.assert_array_equal(logits[:, VOCAB_SIZE:], logits[:, :100])


def _three_layers(source: Path, folder: Path) -> PreTrainedModel:
    """The source's only layer, three times."""
    weights = AutoModelForCausalLM.from_pretrained(source).state_dict()
    deeper = build_tiny_model("llama", folder, num_hidden_layers=3, tie_word_embeddings=False)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(deeper, attn_implementation="eager").eval()
    model.load_state_dict({name: weights[re.sub(r"layers\.\d", "layers.0", name)] for name in model.state_dict()})
    return model

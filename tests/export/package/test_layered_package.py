"""A package run part by part has the bits of the whole one, and no part has more than its own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from gguf import GGMLQuantizationType as Kind

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.checks import package_check
from reader_edge_export.checks.parity import TreeCase
from reader_edge_export.onnx_graph.graph_parts import cut_graph
from reader_edge_export.package.layered_package import LayeredPackage
from reader_edge_export.package.pass_chain import PassChain, WholePackage
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.manifest import GRAPH_NAME, WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.export.gguf_models import build_source, write_model
from tests.tiny_models import VOCAB_SIZE, build_tiny_model

TEXT = np.random.default_rng(0).integers(3, VOCAB_SIZE, 100).tolist()
A_LAYER = 1  # bytes that every layer exceeds
FORMS = [  # model, precision, attention, cache
    ("llama", "int8", "exact", "int8"),
    ("gemma2", "int8", "exact", "int8"),
    ("llama", "int8", "exact", "fp16"),
    ("qwen2", "int4", "exact", None),
    ("gpt2", "fp32", "exact", None),
    ("gemma3_text", "fp32", "exact", None),
    ("gemma2", "fp32", "exact", "fp16"),
    ("phi", "int8", "exact", None),
    ("lfm2", "int8", "exact", None),
    ("qwen3_5_text", "fp32", "exact", None),
    ("gemma4_text", "int8", "exact", "int8"),
    ("gemma4_text", "fp32", "exact", "fp16"),
    ("qwen3_moe", "int4", "exact", None),
    ("gemma4_text-experts", "int8", "exact", None),
    ("llama", "fp32", "fast", None),
    ("gpt2", "fp32", "fast", None),
    ("mistral", "int8", "fast", None),
]


def chains(package: ModelPackage) -> list[PassChain]:
    """A tree over a ragged batch and garbage, chunks of a text, one token at a time, and wide trees behind a prompt."""
    tree = DraftTree.root(TEXT[10])
    for token_id in TEXT[11:40]:
        tree.add(token_id, 0, "")
    return [
        TreeCase.draw(package.manifest, TEXT).chain(),
        PassChain.of_text([], TEXT, 64),
        PassChain.of_text(TEXT[:20], TEXT[20:30], 1),
        PassChain([TEXT[:10]], [Pass(0, [tree], [range(1, len(tree))])] * 2),
    ]


def assert_same_bits(package: ModelPackage, layered: LayeredPackage) -> None:
    whole, asked = WholePackage(HostTarget.open(package)), chains(package)
    num_results = 0
    for result, expected in zip(layered.results(asked), whole.results(asked), strict=True):
        np.testing.assert_array_equal(result.top_ids, expected.top_ids)
        np.testing.assert_array_equal(result.top_logits, expected.top_logits)
        if expected.logits is not None:
            np.testing.assert_array_equal(result.wanted_logits, expected.logits)
        num_results += 1
    assert num_results == 1 + 2 + 10 + 2


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form)))
def test_all_passes_have_the_bits_of_the_whole_package(
    form: tuple[str, str, str, str | None], exported: Callable[..., Path], tmp_path: Path
) -> None:
    package = ModelPackage.open(exported(*form, is_checked=False))
    assert_same_bits(package, LayeredPackage(package, tmp_path, A_LAYER))
    assert not list(tmp_path.iterdir())


def test_matrices_that_stay_as_they_are_have_their_bits_too(tmp_path: Path) -> None:
    changes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
    model = build_source("llama", tmp_path / "source", **changes)
    file = write_model(model, tmp_path / "source", tmp_path / "model.gguf", Kind.Q4_K)
    export_model(file, tmp_path / "out", ExportOptions("keep", check="none"))
    package = ModelPackage.open(tmp_path / "out")
    assert_same_bits(package, LayeredPackage(package, tmp_path, A_LAYER))


def test_a_part_has_one_layer_or_as_many_as_fit_and_their_weights_alone(tmp_path: Path) -> None:
    source = build_tiny_model("llama", tmp_path / "source", num_hidden_layers=4, tie_word_embeddings=False)
    export_model(source, tmp_path / "out", ExportOptions("int8", check="none"))
    package = ModelPackage.open(tmp_path / "out")
    layers = parts_of(package, A_LAYER)
    assert [sorted(past_names(part)) for part in layers] == [
        [f"past_{kind}.{layer}" for kind in ("key", "value")] for layer in range(4)
    ]
    _, *inner, last = sizes = [num_weight_bytes(part) for part in layers]
    assert len(set(inner)) == 1
    assert max(sizes) == last < 0.5 * (package.folder / WEIGHTS_NAME).stat().st_size
    pairs = parts_of(package, 2 * inner[0])
    assert [len(past_names(part)) for part in pairs] == [4, 2, 2]
    assert max(map(num_weight_bytes, pairs)) <= 2 * inner[0]
    assert [len(past_names(part)) for part in parts_of(package, 1 << 30)] == [8]
    for part in layers:
        assert part.functions.keys() == ir.load(package.folder / GRAPH_NAME).functions.keys()
    assert_same_bits(package, LayeredPackage(package, tmp_path, 2 * inner[0]))


@pytest.mark.parametrize("is_whole", [True, False])
def test_passes_tell_of_their_tokens_as_they_are_done(
    is_whole: bool, exported: Callable[..., Path], tmp_path: Path
) -> None:
    package = ModelPackage.open(exported("llama", "int8", "exact"))
    runner = WholePackage(HostTarget.open(package)) if is_whole else LayeredPackage(package, tmp_path, A_LAYER)
    told: list[float] = []
    asked = chains(package)
    first = next(runner.results(asked, told.append))
    assert first.logits is not None
    done = sum(told)
    assert 0 < done < sum(chain.num_tokens for chain in asked)
    assert (done > 100) == (not is_whole)  # by then, half of the parts are done with all of the tokens
    told.clear()
    list(runner.results(asked, told.append))
    assert sum(told) == pytest.approx(sum(chain.num_tokens for chain in asked))


def test_what_crosses_a_cut_is_what_a_layer_and_those_behind_it_read(exported: Callable[..., Path]) -> None:
    package = ModelPackage.open(exported("llama", "int8", "exact"))
    first, second = cut_graph(ir.load(package.folder / GRAPH_NAME), package.manifest, A_LAYER)
    assert first.live == frozenset()
    assert len(second.live) == 3  # hidden states, cosines and sines
    reported = {"present_key.0", "present_value.0", "layer_state.0"}
    assert second.live == {value.name for value in first.model.graph.outputs} - reported
    assert second.live < {value.name for value in second.model.graph.inputs}


def test_large_packages_are_checked_part_by_part_with_the_same_figures(
    exported: Callable[..., Path], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ModelPackage.open(exported("llama", "int8", "exact"))
    monkeypatch.setattr(package_check, "_MAX_WHOLE_BYTES", 0)
    monkeypatch.setattr(LayeredPackage.__init__, "__defaults__", (A_LAYER,))
    monkeypatch.setattr(HostTarget, "open", None)  # calling it would fail
    layered = export_model(source, tmp_path / "layered", ExportOptions("int8"))
    assert layered.checks == whole.manifest.checks
    names, others = ({path.name for path in folder.iterdir()} for folder in (whole.folder, layered.out))
    assert names == others
    for name in names - {"reader_edge.json"}:
        assert (layered.out / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_part_that_cannot_be_loaded_is_told_in_one_sentence(exported: Callable[..., Path], tmp_path: Path) -> None:
    package = ModelPackage.open(exported("llama", "int8", "exact"))
    layered = LayeredPackage(ModelPackage(package.folder, package.manifest), tmp_path)
    layered._weights = tmp_path / WEIGHTS_NAME  # not there
    with pytest.raises(ProviderError, match="cannot load part of a graph"):
        list(layered.results(chains(package)))


def parts_of(package: ModelPackage, max_part_bytes: int) -> list[ir.Model]:
    parts = cut_graph(ir.load(package.folder / GRAPH_NAME), package.manifest, max_part_bytes)
    return [part.model for part in parts]


def past_names(part: ir.Model) -> list[str]:
    return [str(value.name) for value in part.graph.inputs if str(value.name).startswith("past_")]


def num_weight_bytes(part: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in part.graph.initializers.values() if value.const_value is not None)

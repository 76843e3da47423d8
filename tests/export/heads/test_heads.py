"""Heads: run as trained, refused where they are not sound, never heard."""

import re
import runpy
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from reader_edge import Engine, GenerationConfig
from reader_edge.eval_prompt import EvalPrompt
from reader_edge.proof import ways
from reader_edge.proof.proof import prove
from reader_edge_export.heads.head_module import HeadModule
from reader_edge_export.heads.rounded_head import rounded_head
from reader_edge_runtime import DraftSources
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.drafting.sources.head_file import NUM_GUESSES, NUM_SECOND, HeadFile
from reader_edge_runtime.drafting.sources.head_sizes import HeadSizes
from reader_edge_runtime.drafting.sources.head_source import HeadSource
from reader_edge_runtime.errors import HeadError
from reader_edge_runtime.execution import onnxruntime
from reader_edge_runtime.execution.onnxruntime.head_graph import head_model
from reader_edge_runtime.execution.providers import open_head
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from tests.conftest import ROOT
from tests.runtime.execution.native_operator import needs_kernels
from tests.tiny_models import VOCAB_SIZE

HEAD_GRAPH = runpy.run_path(str(ROOT / "scripts" / "write_head_graph"))["head_graph"]()
HIDDEN = 64


def untrained(seed: int = 0) -> HeadModule:
    torch.manual_seed(seed)
    sizes = HeadSizes(HIDDEN, VOCAB_SIZE, embedded=16, inner=32, rank=16)
    return HeadModule(sizes, torch.randn(HIDDEN), torch.rand(HIDDEN) + 0.5)


def rounded(module: HeadModule) -> HeadFile:
    return rounded_head(module, all_ids())


def all_ids() -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.arange(VOCAB_SIZE, dtype=np.int32)


@pytest.fixture(scope="session")
def package(exported: Callable[..., Path]) -> Path:
    KernelLoader.shared().wait()  # until then nothing is drafted
    return exported("llama", "int8", "exact")


@pytest.fixture
def manifest(package: Path) -> Manifest:
    return ModelPackage.open(package).manifest


def test_no_matrix_is_of_two_products() -> None:
    """ONNX Runtime cannot load such a graph on x86 with AVX2 and without VNNI (`has_saturating_sums`)."""
    [definition] = onnx.load_model_from_string(HEAD_GRAPH).functions
    nodes = definition.node
    weights = [node.input[1] for node in nodes if node.op_type == "MatMulInteger"]
    assert len(weights) == len(set(weights)) == 7


@pytest.mark.parametrize("uses_native", [pytest.param(True, marks=needs_kernels), False])
def test_a_graph_guesses_what_its_module_does(manifest: Manifest, uses_native: bool) -> None:
    module = untrained()
    states, pending = torch.randn(2, HIDDEN), torch.tensor([3, VOCAB_SIZE])
    said = open_head(rounded(module), manifest, uses_native).guess(states.numpy(), pending.numpy())
    for shares in (said.probabilities, said.next_probabilities):
        assert (np.diff(shares) <= 0).all()
    with torch.no_grad():
        inner = module.inner_of(states, pending)
        first = torch.softmax(module.vocabulary(module.first_out(inner)), 1)
        second = torch.softmax(module.second_logits(inner, torch.from_numpy(said.numbers[:, 1])), 1)
    expected = np.take_along_axis(first.numpy(), said.numbers, 1)
    np.testing.assert_allclose(said.probabilities, expected, rtol=0.1)  # eight bits
    assert said.next_numbers.shape == (2, NUM_GUESSES, NUM_SECOND)
    following = np.take_along_axis(second.numpy(), said.next_numbers[:, 1], 1)
    np.testing.assert_allclose(said.next_probabilities[:, 1], following, rtol=0.1)


@needs_kernels
def test_a_text_is_guessed_the_same_beside_others(manifest: Manifest) -> None:
    head = open_head(rounded(untrained()), manifest)
    states, pending = torch.randn(5, HIDDEN).numpy(), np.arange(5)
    together = head.guess(states, pending)
    for text in range(5):
        alone = head.guess(states[text : text + 1], pending[text : text + 1])
        for mine, theirs in (
            (alone.probabilities, together.probabilities),
            (alone.next_numbers, together.next_numbers),
        ):
            np.testing.assert_array_equal(mine[0], theirs[text])


@pytest.mark.parametrize("seed", range(2))
def test_a_head_of_random_weights_changes_no_token(
    package: Path, manifest: Manifest, tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "random.head"
    rounded(untrained(seed)).write(path, manifest)
    config = GenerationConfig(max_tokens=40)
    drafted = Engine.load(package, sources=DraftSources(head=path)).generate("the cat", config)
    assert drafted.token_ids == Engine.load(package).generate("the cat", config).token_ids


def test_a_head_of_no_numbers_changes_no_token(package: Path, manifest: Manifest, tmp_path: Path) -> None:
    module = untrained()
    with torch.no_grad():
        module.vocabulary.bias.fill_(float("nan"))
    path = tmp_path / "nan.head"
    rounded(module).write(path, manifest)
    config = GenerationConfig(max_tokens=24)
    drafted = Engine.load(package, sources=DraftSources(head=path)).generate("the cat", config)
    assert drafted.token_ids == Engine.load(package).generate("the cat", config).token_ids


@pytest.mark.parametrize("ids", [[-1, *range(1, 9)], [*range(8), VOCAB_SIZE], [*range(8), 7], [1, 2]])
def test_ids_that_cannot_be_are_refused(manifest: Manifest, tmp_path: Path, ids: list[int]) -> None:
    rounded_head(untrained(), np.array(ids, np.int32)).write(tmp_path / "bad.head", manifest)
    with pytest.raises(HeadError, match=r"names tokens that cannot be: .*\.$"):
        HeadFile.read(tmp_path / "bad.head", manifest)


def test_a_damaged_head_and_another_models_are_refused(manifest: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "one.head"
    rounded(untrained()).write(path, manifest)
    for name, value, sentence in (
        ("hidden_size", HIDDEN + 1, "another model"),
        ("source_fingerprint", "other", "another model"),
        ("hidden_size", None, "reports no hidden states"),
    ):
        with pytest.raises(HeadError, match=sentence):
            HeadFile.read(path, replace_field(manifest, name, value))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(HeadError, match="damaged"):
        HeadFile.read(path, manifest)


def replace_field(manifest: Manifest, name: str, value: object) -> Manifest:
    fields = {each: getattr(manifest, each) for each in Manifest.__slots__}
    return Manifest(**{**fields, name: value})


@pytest.mark.parametrize(
    ("name", "array", "found"),
    [
        ("first.weight", None, "nothing as first.weight, which is int8 (80, 32)"),
        ("first.weight", np.zeros((80, 33), np.int8), "int8 (80, 33) as first.weight, which is int8 (80, 32)"),
        ("mean", np.zeros(HIDDEN), "float64 (64,) as mean, which is float32 (64,)"),
    ],
)
def test_a_head_of_other_matrices_is_refused(
    manifest: Manifest, tmp_path: Path, name: str, array: Array | None, found: str
) -> None:
    head = rounded(untrained())
    others = {each: value for each, value in head.matrices.items() if each != name}
    odd = others if array is None else {**others, name: array}
    replace(head, matrices=odd).write(tmp_path / "odd.head", manifest)
    with pytest.raises(HeadError, match=rf"holds {re.escape(found)}: train it again [^.]*\.$"):
        HeadFile.read(tmp_path / "odd.head", manifest)


@pytest.mark.parametrize("inner", [0, 1 << 13])
def test_a_head_of_sizes_that_none_has_is_refused(manifest: Manifest, tmp_path: Path, inner: int) -> None:
    head = rounded(untrained())
    replace(head, sizes=replace(head.sizes, inner=inner)).write(tmp_path / "odd.head", manifest)
    with pytest.raises(HeadError, match=r"does not have layers of 1 to 4096 numbers: train it again [^.]*\.$"):
        HeadFile.read(tmp_path / "odd.head", manifest)


def test_the_runtime_has_the_graph_that_export_writes() -> None:
    """`scripts/write_head_graph` writes it again."""
    assert resources.files(onnxruntime).joinpath("head.onnx").read_bytes() == HEAD_GRAPH
    onnx.checker.check_model(onnx.load_from_string(head_model(rounded(untrained()))), full_check=True)


def test_a_graph_of_other_sizes_is_refused_when_it_is_loaded(manifest: Manifest) -> None:
    sizes = HeadSizes(HIDDEN + 8, VOCAB_SIZE, embedded=16, inner=32, rank=16)
    module = HeadModule(sizes, torch.zeros(HIDDEN + 8), torch.ones(HIDDEN + 8))
    with pytest.raises(HeadError, match=r"does not run"):
        open_head(rounded(module), manifest)


def test_a_proof_has_runs_of_its_own_for_a_head(
    package: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "DRAFTERS", ("none",))
    module = untrained()
    with torch.no_grad():
        module.vocabulary.bias[5] = 10  # always sure of the same token
    head = HeadSource(rounded(module), open_head(rounded(module), manifest), VOCAB_SIZE)
    report = prove(Engine.load(package), [EvalPrompt("the cat")], 12, further=[head])
    assert report.counts.divergences == 0
    assert (
        sum(run.nodes_by_source.get("head", 0) for run in report.runs if run.setting.drafter == "all sources + head")
        > 0
    )

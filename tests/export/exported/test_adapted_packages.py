"""Packages that take adapters: the merged model's logits, each request's own in one batch, bit for bit, or none."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.split.split_package import split_package
from reader_edge_runtime.adapters.adapter_table import Factors
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, ExportError, ProviderError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import AdaptedTarget, Pass
from tests.export.conftest import Exported, TinyModel
from tests.export.gguf_models import write_model
from tests.export.source_models import chain_logits, load_folder
from tests.export.sources.adapters.adapter_files import draw_factors
from tests.runtime.execution.native_operator import needs_kernels

pytestmark = needs_kernels
TOKENS = [5, 9, 2, 40, 17, 3, 8, 8, 11]
Adapted = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def adapted(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """(model_type, precision) -> the folder of a package that takes adapters; not to be changed."""
    root = tmp_path_factory.mktemp("adapted")

    def export(model_type: str, precision: str) -> Path:
        out = root / f"{model_type}-{precision}"
        if not out.exists():
            source = tiny_model(model_type)
            if precision == "keep":
                kinds = {"blk.0.attn_v.weight": Kind.Q4_0}  # query and key, and value: two products of the same rows
                model = AutoModelForCausalLM.from_pretrained(source)
                source = write_model(model, root / f"{out.name}.gguf", Kind.Q8_0, kinds=kinds)
            export_model(source, out, ExportOptions(precision, check="none", takes_adapters=True))
        return out

    return export


def draw(model_type: str, tiny_model: TinyModel, rank: int, seed: int) -> dict[str, Factors]:
    """Of all modules that take any."""
    rng = np.random.default_rng(seed)
    drawn = draw_factors(load_folder(tiny_model(model_type)), rank)
    return {name: Factors(up * rng.normal(size=rank).astype(np.float32), down) for name, (up, down) in drawn.items()}


def logits_of(
    target: HostTarget, ids: list[int], num_nodes: int, chains: list[list[int]] | None = None
) -> Float32Array:
    """(B, N, V) behind each token of a chain for each id, so many nodes a pass."""
    chains, parts = chains or [TOKENS] * len(ids), []
    cache = target.new_cache(len(chains), 32)
    for start in range(0, len(TOKENS), num_nodes):
        trees = [DraftTree.chain(chain[start : start + num_nodes]) for chain in chains]
        rows = [range(len(tree)) for tree in trees]
        wanted = Pass(0, trees, rows, wants_logits=True, num_kept=len(trees[0]), adapter_ids=ids)
        parts.append(target.forward(cache, wanted).wanted_logits.copy())
        for slot, each in enumerate(rows):
            cache.commit(slot, each)
    return np.concatenate(parts, axis=1)


def merged_logits(module: PreTrainedModel, adapter: dict[str, Factors]) -> Float32Array:
    """(N, V), of a module that has the adapter from now on."""
    for name, (up, down) in adapter.items():
        layer = module.get_submodule(name)
        assert isinstance(layer.weight, torch.Tensor)
        added = torch.from_numpy(up @ down)
        layer.weight.data += added.T if isinstance(layer, Conv1D) else added
    logits: Float32Array = chain_logits(module, TOKENS).numpy()
    return logits


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "phi3", "gemma3_text", "qwen3_5_moe_text"])
def test_logits_are_those_of_the_merged_module(model_type: str, adapted: Adapted, tiny_model: TinyModel) -> None:
    package = ModelPackage.open(adapted(model_type, "fp32"))
    target = HostTarget.open(package)
    assert isinstance(target, AdaptedTarget)
    places = {part.name for product in package.manifest.adapted_products for part in product.parts}
    adapter = {name: each for name, each in draw(model_type, tiny_model, 3, 0).items() if name in places}
    assert len(adapter) >= 8
    expected = merged_logits(load_folder(tiny_model(model_type)), adapter)
    plain = logits_of(target, [-1], 9)
    found = logits_of(target, [target.adapters.add(adapter)], 9)
    assert np.abs(found - plain).max() > 1e-2
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


def test_factors_are_in_the_modules_order_where_a_file_has_another(adapted: Adapted, tiny_model: TinyModel) -> None:
    """Files of Llama have rows of query and key in pairs. Rounded products change what it does."""
    target = HostTarget.open(ModelPackage.open(adapted("llama", "keep")))
    names = [f"model.layers.{layer}.self_attn.{part}_proj" for layer in range(2) for part in "qk"]
    drawn = draw("llama", tiny_model, 3, 0)
    adapter = {name: drawn[name] for name in names}
    module = load_folder(tiny_model("llama"))
    changed = -chain_logits(module, TOKENS).numpy() + merged_logits(module, adapter)
    found = logits_of(target, [target.adapters.add(adapter)], 9)[0] - logits_of(target, [-1], 9)[0]
    assert np.linalg.norm(found - changed) < 0.3 * np.linalg.norm(changed)


@pytest.mark.parametrize("precision", ["int8", "int8-a16", "int4", "keep"])
def test_requests_in_one_batch_have_the_bits_of_each_alone_at_every_width(
    precision: str, adapted: Adapted, tiny_model: TinyModel
) -> None:
    target = HostTarget.open(ModelPackage.open(adapted("llama", precision)))
    ids = [target.adapters.add(draw("llama", tiny_model, rank, rank)) for rank in (2, 16, 5)]
    together = logits_of(target, [ids[2], -1, ids[0], ids[1]], 4)
    assert np.abs(together[1:] - together[0]).max(axis=(1, 2)).min() > 1e-2
    for b, adapter_id in enumerate([ids[2], -1, ids[0], ids[1]]):
        for num_nodes in (1, 3, 9):
            assert logits_of(target, [adapter_id], num_nodes).tobytes() == together[b : b + 1].tobytes()


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_without_an_adapter_bits_are_those_of_a_package_that_takes_none(
    precision: str, adapted: Adapted, exported: Exported, tiny_model: TinyModel
) -> None:
    plain = HostTarget.open(ModelPackage.open(exported("llama", precision, "exact", is_checked=False)))
    target = HostTarget.open(ModelPackage.open(adapted("llama", precision)))
    before = logits_of(target, [], 3, [TOKENS, TOKENS[::-1]])
    target.adapters.add(draw("llama", tiny_model, 2, 0))
    expected = logits_of(plain, [], 3, [TOKENS, TOKENS[::-1]])
    for found in (before, logits_of(target.with_min_rows(1), [-1, -1], 3, [TOKENS, TOKENS[::-1]])):
        assert found.tobytes() == expected.tobytes()


def test_an_adapter_comes_and_goes_without_a_new_session(adapted: Adapted, tiny_model: TinyModel) -> None:
    target = HostTarget.open(ModelPackage.open(adapted("llama", "int8")))
    first, second = draw("llama", tiny_model, 2, 0), draw("llama", tiny_model, 7, 1)
    found = logits_of(target, [target.adapters.add(first)], 3)
    target.adapters.add(second)  # of a higher rank: another table
    assert logits_of(target, [0], 3).tobytes() == found.tobytes()
    of_second = logits_of(target, [1], 3)
    target.adapters.drop(0)
    assert target.adapters.add(second) == 0
    assert logits_of(target, [0], 3).tobytes() == of_second.tobytes()


def test_what_cannot_take_adapters_is_one_sentence(adapted: Adapted, tmp_path: Path) -> None:
    for precision, attention in (("auto", "portable"), ("int8", "fast"), ("fp16", "exact")):
        with pytest.raises(ConfigError, match=r"^takes_adapters needs attention 'exact' and precision fp32, int8"):
            ExportOptions(precision, attention, takes_adapters=True)
    folder = adapted("llama", "int8")
    with pytest.raises(ExportError, match=r"takes adapters, which no pipeline does yet: export the model without"):
        split_package(folder, tmp_path / "stages", 2)
    with pytest.raises(ProviderError, match=r"takes adapters, which native kernels alone add: install or build"):
        HostTarget.open(ModelPackage.open(folder), uses_native=False)

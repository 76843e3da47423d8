"""Every provider that this machine has keeps the contract of target.py: a new one is proved here.

On the demo package, or one of its model that is made for a provider; tests/export/exported/test_device_wings.py
has those of devices, simulated on the CPU.
"""

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import pytest

from reader_edge.commands.run import run
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.iree.wheel import compiler_version
from reader_edge_runtime.execution.providers import PROVIDERS, named_provider
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.manifest import EXACT_ATTENTIONS
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.plug_ins import provider_names, provider_plug_ins
from reader_edge_runtime.target import Pass, Target

PROMPT = [5, 6, 7, 8, 9]
PARENTS = [-1, 0, 0, 1, 1, 2, 4]
TOKEN_IDS = [11, 12, 13, 14, 15, 16, 17]
PATH = [0, 1, 4, 6]
# Of packages of the demo's model that are made for a provider.
MADE_FOR = {
    "cuda": {"precision": "fp16"},
    "iree": {"precision": "fp32", "attention": "portable-exact", "engine": "iree"},
    "webgpu": {"precision": "fp32", "attention": "portable"},
    "tensorrt": {"precision": "fp16", "attention": "fast"},
}


@pytest.fixture(scope="module", params=provider_names())
def target(request: pytest.FixtureRequest, demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Target:
    provider, package = named_provider(request.param), ModelPackage.open(demo_folder)
    obstacle = provider.obstacle()
    if obstacle is None and not provider.suits(package):
        if request.param == "iree" and compiler_version() is None:
            obstacle = "the demo package is not made for it, nor can one be made here."
        else:
            package = ModelPackage.open(made_for(request.param, demo_folder, tmp_path_factory.mktemp("made")))
    if obstacle is not None:
        pytest.skip(f"{request.param} does not run here: {obstacle}")
    return provider.open(package, 1, True)


def made_for(provider: str, demo_folder: Path, folder: Path) -> Path:
    """A package of the demo's model."""
    options = pytest.importorskip("reader_edge_export.options", reason="the extra 'export' is not installed")
    pipeline = pytest.importorskip("reader_edge_export.pipeline")
    made = options.ExportOptions(check="none", **MADE_FOR[provider])
    pipeline.export_model(demo_folder.parent / "checkpoint", folder / "package", made)
    return folder / "package"


def test_best_successors_are_those_of_the_logits(target: Target) -> None:
    result = score(target, prompts=[PROMPT])
    logits = result.wanted_logits
    assert logits.shape == (1, len(PARENTS), target.manifest.vocab_size)
    assert result.top_ids.shape == result.top_logits.shape == (1, len(PARENTS), target.manifest.top_k)
    np.testing.assert_array_equal(result.top_logits, np.take_along_axis(logits, result.top_ids, axis=2))
    np.testing.assert_array_equal(result.top_logits[..., 0], logits.max(axis=2))
    assert (np.diff(result.top_logits, axis=2) <= 0).all()


def test_trees_and_batches_see_their_own_alone(target: Target) -> None:
    tree_logits = score(target, prompts=[PROMPT]).wanted_logits[0].copy()
    chain = chain_logits(target, PROMPT + [TOKEN_IDS[node] for node in PATH])
    np.testing.assert_allclose(tree_logits[PATH], chain[len(PROMPT) :], atol=tolerance(chain))
    alone = [score(target, prompts=[prompt]).wanted_logits[0].copy() for prompt in (PROMPT, PROMPT[:2])]
    together = score(target, prompts=[PROMPT, PROMPT[:2]]).wanted_logits
    np.testing.assert_allclose(together, np.stack(alone), atol=tolerance(together))


def test_cache_keeps_the_committed_path_through_growth_swap_and_truncation(target: Target) -> None:
    cache = target.new_cache(2, 16)
    run_chain(target, cache, 0, PROMPT)
    target.forward(cache, Pass(0, [tree()], [[0]]))
    cache.commit(0, PATH)
    cache.reserve(2, 64)
    cache.swap(0, 1)
    assert cache.lengths == [0, len(PROMPT) + len(PATH)]
    assert cache.cut(1, len(PROMPT) + 2) == len(PROMPT) + 2
    logits = run_chain(target, cache, 1, [20, 21])
    text = [*PROMPT, *(TOKEN_IDS[node] for node in PATH[:2]), 20, 21]
    expected = chain_logits(target, text)[-2:]
    np.testing.assert_allclose(logits, expected, atol=tolerance(expected))


def test_rows_that_were_read_go_on_in_another_slot_of_another_cache(target: Target) -> None:
    cache, other = target.new_cache(2, 16), target.new_cache(3, 64)
    run_chain(target, cache, 1, PROMPT)
    contents = cache.read_slot(1, len(PROMPT))
    run_chain(target, other, 0, [20, 21])
    other.write_slot(2, contents)
    assert other.lengths == [2, 0, len(PROMPT)]
    np.testing.assert_array_equal(other.read_slot(2, len(PROMPT)).rows, cache.read_slot(1, len(PROMPT)).rows)
    np.testing.assert_array_equal(run_chain(target, other, 2, [22]), run_chain(target, cache, 1, [22]))
    expected = chain_logits(target, [20, 21, 22])[-1]
    atol = 0 if target.manifest.attention in EXACT_ATTENTIONS else tolerance(expected)
    np.testing.assert_allclose(run_chain(target, other, 0, [22])[-1], expected, rtol=0, atol=atol)


def test_every_room_knows_the_same_providers() -> None:
    """Neither the config nor the command line may load an engine of execution to ask for their names."""
    choices = next(option.type for option in run.params if option.name == "provider")
    assert isinstance(choices, click.Choice)
    assert set(choices.choices) == {*PROVIDERS, *provider_plug_ins()}
    for name in choices.choices:
        assert EngineConfig(provider=name).provider == name


def tree() -> DraftTree:
    result = DraftTree.root(TOKEN_IDS[0])
    for token_id, parent in zip(TOKEN_IDS[1:], PARENTS[1:], strict=True):
        result.add(token_id, parent, "test")
    return result


def score(target: Target, prompts: Sequence[list[int]]) -> ForwardResult:
    """The same tree behind each prompt, all nodes reported on."""
    cache = target.new_cache(len(prompts), 32)
    for slot, prompt in enumerate(prompts):
        run_chain(target, cache, slot, prompt)
    rows = list(range(len(PARENTS)))
    wanted = Pass(0, [tree() for _ in prompts], [rows for _ in prompts], wants_logits=True)
    return target.forward(cache, wanted)


def run_chain(target: Target, cache: Cache, slot: int, token_ids: list[int]) -> Float32Array:
    """Commit a text to a slot; its logits (N, V)."""
    rows = list(range(len(token_ids)))
    result = target.forward(cache, Pass(slot, [DraftTree.chain(token_ids)], [rows], wants_logits=True))
    cache.commit(slot, rows)
    logits: Float32Array = result.wanted_logits[0].copy()
    return logits


def chain_logits(target: Target, token_ids: list[int]) -> Float32Array:
    return run_chain(target, target.new_cache(1, 32), 0, token_ids)


def tolerance(logits: Float32Array) -> float:
    """Providers may sum in another order at another width; a wrong mask changes logits by a tenth and more."""
    return 1e-3 * float(np.abs(logits).max())

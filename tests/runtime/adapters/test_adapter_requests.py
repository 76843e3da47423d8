"""Requests with adapters in one batch: each is answered as it would be alone, whatever comes, goes or was before."""

from pathlib import Path

import numpy as np
import pytest

from reader_edge_runtime import DraftConfig, EngineConfig, GenerationConfig
from reader_edge_runtime.adapters.adapter_set import AdapterSet, LoadedAdapter, ReadAdapter
from reader_edge_runtime.adapters.adapter_table import AdapterTable
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import salt_of
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.history_file import HistoryFile
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.target import Pass
from tests.fake_target import FakeTarget
from tests.random_drafter import RandomDrafter, reference
from tests.runtime.adapters.adapter_folders import adapted_manifest, factors, write_adapter

VOCAB = 6
NAMES = ("first", "second", "third")


class AdaptedFake(FakeTarget):
    """A row tells by which adapter it was made, and its logits hang on those of all rows that it sees."""

    def __init__(self) -> None:
        super().__init__(adapted_manifest(vocab_size=VOCAB))
        self.adapters = AdapterTable(self.manifest.adapted_products)

    def logits_of(self, cache: Cache, wanted: Pass) -> Float32Array:
        ids = wanted.adapter_ids or [-1] * len(wanted.trees)
        trees = [
            DraftTree([marked(token_id, adapter_id) for token_id in tree.token_ids], tree.parents, tree.sources)
            for tree, adapter_id in zip(wanted.trees, ids, strict=True)
        ]
        return super().logits_of(cache, wanted._replace(trees=trees))


class Alone(FakeTarget):
    """What an adapter alone makes of a text."""

    def __init__(self, adapter_id: int) -> None:
        super().__init__(adapted_manifest(vocab_size=VOCAB))
        self._id = adapter_id

    def logits_after(self, token_ids: list[int]) -> Float32Array:
        return super().logits_after([marked(token_id, self._id) for token_id in token_ids])


def marked(token_id: int, adapter_id: int) -> int:
    return token_id + VOCAB * (adapter_id + 1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(root / name, factors(seed)) for seed, name in enumerate(NAMES)}


def load(adapters: AdapterSet, target: AdaptedFake, folders: dict[str, Path], *names: str) -> list[LoadedAdapter]:
    return [adapters.add(ReadAdapter(name, folders[name], target.manifest), target) for name in names]


@pytest.mark.parametrize("seed", range(4))
def test_answers_in_mixed_batches_are_those_of_each_alone(seed: int, folders: dict[str, Path]) -> None:
    target, adapters = AdaptedFake(), AdapterSet()
    every = [None, *load(adapters, target, folders, *NAMES)]
    decoder = Decoder(target, RandomDrafter(VOCAB, 9, seed), EngineConfig(max_batch=4, prefill_chunk=7))
    rng = np.random.default_rng(seed)
    texts = [rng.integers(VOCAB, size=20).tolist() for _ in range(2)]
    requests: list[tuple[Request, LoadedAdapter | None]] = []
    for number in range(16):
        adapter = every[number % 4] if number < 8 else every[int(rng.integers(4))]
        config = GenerationConfig(max_tokens=int(rng.integers(4, 16)))
        requests.append((decoder.submit(texts[int(rng.integers(2))], config, adapter=adapter), adapter))
        for _ in range(int(rng.integers(3))):
            decoder.step()
    decoder.finish(*(request for request, _ in requests))
    for request, adapter in requests:
        alone = Alone(-1 if adapter is None else adapter.adapter_id)
        prompt = request.token_ids[: request.num_prompt_tokens]
        assert request.output_token_ids == reference(alone.manifest, prompt, request.config, alone)
    assert sum(request.stats.num_reused_tokens for request, _ in requests) > 50


def test_an_adapter_that_went_answers_to_the_end_of_its_requests(folders: dict[str, Path]) -> None:
    target, adapters = AdaptedFake(), AdapterSet()
    [adapter] = load(adapters, target, folders, "first")
    decoder = Decoder(target, RandomDrafter(VOCAB, 9, 0), EngineConfig(max_batch=2))
    request = decoder.submit([1, 2, 3], GenerationConfig(max_tokens=20), adapter=adapter)
    del adapter
    decoder.step()
    adapters.drop("first", target)
    [other] = load(adapters, target, folders, "second")
    assert other.adapter_id != request.adapter_id
    decoder.finish(request)
    alone = Alone(request.adapter_id)
    assert request.output_token_ids == reference(alone.manifest, [1, 2, 3], request.config, alone)
    freed = request.adapter_id
    [third] = load(adapters, target, folders, "third")
    assert third.adapter_id == freed
    with pytest.raises(ConfigError, match="There is no adapter 'first': loaded are second, third"):
        adapters.get("first")
    assert list(adapters) == ["second", "third"]
    assert "first" not in adapters


def test_one_of_the_same_name_is_another(folders: dict[str, Path]) -> None:
    target, adapters = AdaptedFake(), AdapterSet()
    [old] = load(adapters, target, folders, "first")
    [new] = load(adapters, target, {"first": folders["second"]}, "first")
    assert adapters.get("first") is new
    assert old.fingerprint != new.fingerprint
    assert old.adapter_id != new.adapter_id
    with pytest.raises(ConfigError, match="FakeExecutionProvider computes no adapters"):
        adapters.add(ReadAdapter("first", folders["first"], target.manifest), FakeTarget(target.manifest))


def test_no_salt_is_that_of_another_adapter_or_caller() -> None:
    pairs = [("", ""), ("", "a"), ("a", ""), ("a", "a"), ("", "a:"), ("", ":a"), ("a", ":a")]
    assert len({salt_of(*pair) for pair in pairs}) == len(pairs)
    assert salt_of("", "") == ""


def test_a_history_file_has_nothing_of_adapters_and_gives_them_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history"
    drafter = RetrievalDrafter(DraftConfig(), history_file=HistoryFile(path, bytes(32), 1000, 100)).wait()
    target, texts = FakeTarget(adapted_manifest(vocab_size=100)), {}
    decoder = Decoder(target, drafter, EngineConfig(max_batch=1))
    adapters = [None, LoadedAdapter("a", path, -1, "f" * 64)]
    for adapter in adapters:
        request = decoder.submit([1, 2, 3], GenerationConfig(max_tokens=30), adapter=adapter)
        decoder.finish(request)
        texts[adapter] = len(HistoryFile(path, bytes(32), 1000, 100).read())
    assert list(texts.values()) == [1, 1]
    own, other = (drafter.core(salt_of(fingerprint, "caller")) for fingerprint in ("", "f" * 64))
    assert own is drafter.core()
    assert own is not other
    assert other is not None
    assert len(other.history.texts()) == 1

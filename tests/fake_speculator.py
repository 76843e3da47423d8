"""A speculator without weights, as a graph and as a source: texts with states, and what it proposes for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.speculators.speculator import SpeculatorResult, TreeStep
from reader_edge_runtime.drafting.speculators.speculator_request import SpeculatorRequest
from reader_edge_runtime.drafting.speculators.speculator_source import SpeculatorSource
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.package_parts import BlockPart, SpeculatorPart
from reader_edge_runtime.target import Pass
from tests.fake_target import FakeTarget, make_manifest

TOP_K = 4


class TellingTarget(FakeTarget):
    """Tells states of layers: of every node, two numbers, its token and its position."""

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        result = super().forward(cache, wanted)
        if not wanted.wants_layer_states:
            return result
        states = np.zeros((1, len(wanted.trees), max(map(len, wanted.trees)), 2), np.float32)
        for b, tree in enumerate(wanted.trees):
            _, depths = tree.ancestors_and_depths()
            states[0, b, : len(tree), 0] = tree.token_ids
            states[0, b, : len(tree), 1] = cache.lengths[wanted.first_slot + b] + depths
        return result._replace(layer_states=states)


class FakeSpeculator:
    """Says what a target says that looks at so many last tokens. num_caught_up, num_stepped: nodes of its passes.

    block: with one it says at once what follows a text, what follows that and the best token, and so on. num_drafted:
    the places of each pass. is_checked: not while made-up rows are measured.
    """

    state_size = 2

    def __init__(self, target: FakeTarget, manifest: Manifest, block: BlockPart | None = None) -> None:
        vocab_size = manifest.vocab_size
        format_name, top_k = "eagle3" if block is None else "dflash", min(TOP_K, vocab_size)
        self.part = SpeculatorPart(format_name, 1, 1, 1, 2, 2, vocab_size, top_k, (0,), block)
        self.num_drafted: list[int] = []
        self.max_context = manifest.max_context
        self.num_caught_up: list[list[int]] = []
        self.num_stepped: list[list[int]] = []
        self.is_broken = self.is_checked = False
        self.odd: tuple[int, float] | None = None  # a token that it names, and the probability it gives it
        self._target, self._manifest = target, manifest

    def new_cache(self, num_slots: int, capacity: int) -> HostCache:
        return HostCache(self._manifest, num_slots, capacity)

    def catch_up(
        self,
        cache: Cache,
        first_slot: int,
        further: Sequence[Sequence[int]],
        states: Sequence[Float32Array],
        num_drafts: int = 1,
    ) -> SpeculatorResult:
        self.num_caught_up.append(list(map(len, further)))
        texts, most = [], max(map(len, further))
        for b, (tokens, each) in enumerate(zip(further, states, strict=True)):
            start = cache.lengths[first_slot + b]
            rows = self._rows(cache, first_slot + b, start + most)
            rows[start : start + len(tokens)] = np.stack([np.array(tokens), each[:, 0]], 1)
            if self.is_checked:
                _check_chain(rows[: start + len(tokens)])
                assert (np.diff(each[:, 1]) == 1).all(), "states of a text, one behind the other"
            texts.append((rows[: start + len(tokens), 0], each[-1, 1] + 1))
        self.num_drafted.append(num_drafts)
        result = self._result([self._chain(text, num_drafts) for text, _ in texts], most)
        for b, ((text, position), tokens) in enumerate(zip(texts, further, strict=True)):
            result.next_states[b, len(tokens) - 1] = text[-1], position
        return result

    def step(self, cache: Cache, first_slot: int, steps: Sequence[TreeStep]) -> SpeculatorResult:
        self.num_stepped.append([len(step.tree) - step.num_scored for step in steps])
        texts: list[list[Any]] = []
        for b, step in enumerate(steps):
            root = cache.lengths[first_slot + b] - 1
            rows = self._rows(cache, first_slot + b, root + len(step.tree))
            new = range(step.num_scored, len(step.tree))
            rows[root + step.num_scored : root + len(step.tree), 0] = step.tree.token_ids[step.num_scored :]
            rows[root + step.num_scored : root + len(step.tree), 1] = step.states[:, 0]
            texts.append([])
            for node in new:
                path = np.flatnonzero(step.tree.ancestors_and_depths()[0][node])
                visible = np.concatenate([rows[:root], rows[root + path]])
                if self.is_checked:
                    _check_chain(visible)
                texts[b].append(visible[:, 0])
        result = self._result(texts, max(map(len, texts)))
        for b, each in enumerate(texts):
            for number, text in enumerate(each):
                result.next_states[b, number] = text[-1], 0
        return result

    def _chain(self, text: Any, num_drafts: int) -> list[Any]:
        """The text, then with one best token more each time."""
        chain = [text]
        for _ in range(num_drafts - 1):
            best = self._target.logits_after(chain[-1].astype(int).tolist()).argmax()
            chain.append(np.append(chain[-1], best))
        return chain

    def _rows(self, cache: Cache, slot: int, num_rows: int) -> Any:
        if self.is_broken:
            raise ProviderError("ONNX Runtime failed in a pass.")
        assert isinstance(cache, HostCache)
        cache.reserve(cache.num_slots, num_rows)
        return cache.slab[0, slot, 0]

    def _result(self, texts: Sequence[Sequence[Any]], num_nodes: int) -> SpeculatorResult:
        shape = len(texts), max(map(len, texts)), self.part.top_k
        result = SpeculatorResult(
            np.zeros(shape, np.int64), np.zeros(shape, np.float32), np.zeros((len(texts), num_nodes, 2), np.float32)
        )
        for b, each in enumerate(texts):
            for number, text in enumerate(each):
                logits = self._target.logits_after(text.astype(int).tolist())
                best = np.argsort(-logits, kind="stable")[: self.part.top_k]
                result.top_ids[b, number] = best
                result.probabilities[b, number] = np.exp(logits[best]) / np.exp(logits).sum()
        if self.odd is not None:
            result.top_ids[..., 0], result.probabilities[..., 0] = self.odd
        return result


def _check_chain(rows: Any) -> None:
    """Every row but the first was scored from the state of the token before."""
    np.testing.assert_array_equal(rows[1:, 1], rows[:-1, 0])


MANIFEST = replace(make_manifest(6, max_context=256), state_ids=(0,))
NOTHING = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32)


def speculator_of(
    order: int = 3, sharpness: float = 4.0, max_context: int = 256, block: BlockPart | None = None
) -> FakeSpeculator:
    manifest = replace(MANIFEST, max_context=max_context)
    return FakeSpeculator(FakeTarget(manifest, order, sharpness), manifest, block)


def source_of(speculator: FakeSpeculator, max_slots: int = 4) -> SpeculatorSource:
    source = SpeculatorSource(speculator, (0,), MANIFEST.vocab_size, max_slots)
    for measured in (speculator.num_stepped, speculator.num_caught_up, speculator.num_drafted):
        measured.clear()
    speculator.is_checked = True
    return source


def drafter_of(source: SpeculatorSource) -> RetrievalDrafter:
    return RetrievalDrafter(DraftConfig(is_logits_used=False), [source]).wait()


def add_states(request: SpeculatorRequest, start: int, source: str = "") -> None:
    """Have a target tell what it thinks of a text's tokens from a position on, but for the last. source: of drafts."""
    tokens = list(request.token_ids[start:-1])
    states = np.array([[token, position] for position, token in enumerate(tokens, start)], np.float32)
    rows, tree = range(len(tokens) - 1, len(tokens)), DraftTree.chain(tokens)
    tree.sources[1:] = [source] * (len(tokens) - 1)
    request.observe(ScoredTree(tree, rows, start, *NOTHING, 6, None, states[:, None]))


def begun(source: SpeculatorSource, text: list[int]) -> SpeculatorRequest:
    request = source.begin(RequestContext(text))
    add_states(request, 0)
    return request


def draft_request(request: SpeculatorRequest, max_depth: int = 4, token_s: float = 0.0) -> DraftRequest:
    """With a drafter that drafts what is proposed."""
    return DraftRequest(request, 16, max_depth, token_s, lambda tree: tree.pruned(16))


def likeliest(tree: DraftTree | None, depth: int) -> list[int]:
    """The tokens of the most valuable path of so many tokens."""
    assert tree is not None
    paths: list[list[int]] = [[]]
    for node in range(1, len(tree)):
        paths.append([*paths[tree.parents[node]], tree.token_ids[node]])
    [*_, best] = sorted((tree.values[node], paths[node]) for node in range(len(tree)) if len(paths[node]) == depth)
    return best[1]


def greedy(target: FakeTarget, text: list[int], count: int) -> list[int]:
    text = list(text)
    for _ in range(count):
        text.append(int(target.logits_after(text).argmax()))
    return text[-count:]

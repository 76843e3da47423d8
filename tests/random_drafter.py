"""A drafter of random trees, the answers that any drafter must leave, and a rule that is not exact."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from reader_edge_runtime.acceptance import AcceptanceRule, Choices
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.config import EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.sampling.sampler import Sampler
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.errors import ReaderEdgeError
from reader_edge_runtime.package.manifest import Manifest
from tests.fake_target import FakeTarget


class RandomDrafter(Drafter):
    """Random trees over a small vocabulary: many are right by chance, at scattered nodes."""

    num_harvested_rows = 5

    def __init__(self, vocab_size: int, num_nodes: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._vocab_size = vocab_size
        self._num_nodes = num_nodes

    def begin(self, context: RequestContext) -> "RandomRequest":
        return RandomRequest(context, min(4, self._vocab_size))

    def draft(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | ReaderEdgeError]:
        return [
            self._tree(cast(RandomRequest, draft_request.request), draft_request.max_nodes, draft_request.max_depth)
            for draft_request in draft_requests
        ]

    def _tree(self, request: "RandomRequest", max_nodes: int, max_depth: int) -> DraftTree:
        tree = DraftTree.root(request.token_ids[-1])
        depths = [0]
        for _ in range(min(self._num_nodes, max_nodes) - 1):
            parent = int(self._random.integers(len(tree)))
            token_id = int(self._random.integers(self._vocab_size))
            if depths[parent] < max_depth and tree.child(parent, token_id) < 0:
                tree.add(token_id, parent, "random", value=float(self._random.random()) * tree.values[parent])
                depths.append(depths[parent] + 1)
        return tree


class RightDrafter(RandomDrafter):
    """Chains of what a target says itself, of any length up to so many nodes: all of them are accepted."""

    def __init__(self, target: FakeTarget, num_nodes: int, seed: int) -> None:
        super().__init__(target.manifest.vocab_size, num_nodes, seed)
        self._target = target

    def _tree(self, request: "RandomRequest", max_nodes: int, max_depth: int) -> DraftTree:
        tree, text = DraftTree.root(request.token_ids[-1]), list(request.token_ids)
        for node in range(int(self._random.integers(min(self._num_nodes, max_nodes, max_depth + 1)))):
            text.append(int(np.argmax(self._target.logits_after(text))))
            tree.add(text[-1], node, "right", value=1.0)
        return tree


class RandomRequest(RequestDrafter):
    """Checks what it observes of its own list of token ids."""

    def __init__(self, context: RequestContext, top_k: int) -> None:
        super().__init__(context)
        self._top_k = top_k

    def observe(self, scored: ScoredTree | None) -> None:
        if scored is None:
            return
        assert scored.top_ids.shape == scored.top_logits.shape == (len(scored.rows), self._top_k)
        assert range(len(scored.tree))[scored.rows.start : scored.rows.stop] == scored.rows
        assert self.token_ids[scored.root] == scored.tree.token_ids[0]
        assert (np.diff(scored.top_logits, axis=1) <= 0).all()


def make_decoder(manifest: Manifest, drafter: Drafter, max_batch: int = 4, chunk: int = 7) -> Decoder:
    target = FakeTarget(manifest)
    return Decoder(target, drafter, EngineConfig(max_batch=max_batch, prefill_chunk=chunk))


def decode(decoder: Decoder, prompts: Sequence[Sequence[int]], configs: Sequence[GenerationConfig]) -> list[list[int]]:
    sequences = [decoder.submit(prompt, config) for prompt, config in zip(prompts, configs, strict=True)]
    decoder.finish(*sequences)
    return [sequence.output_token_ids for sequence in sequences]


def reference(
    manifest: Manifest, prompt: Sequence[int], config: GenerationConfig, target: FakeTarget | None = None
) -> list[int]:
    """Greedy or sampled decoding written down directly, without trees or cache."""
    target = target or FakeTarget(manifest)
    sampler = Sampler(config.sampling or SamplingConfig(), manifest.vocab_size, prompt)
    token_ids = list(prompt)
    while len(token_ids) - len(prompt) < config.max_tokens and len(token_ids) < manifest.max_context:
        token_ids.append(chosen(sampler, target.logits_after(token_ids), len(token_ids)))
    return token_ids[len(prompt) :]


def chosen(sampler: Sampler, logits: Float32Array, position: int) -> int:
    token_id = sampler.peek(logits, position)
    sampler.take(token_id)
    return token_id


class SecondBest(AcceptanceRule):
    name = "second best"

    def next_token(self, choices: Choices, node: int) -> int:
        token_ids, _ = choices.successors(node)
        second = int(token_ids[1])
        is_drafted = choices.tree.child(node, second) >= 0
        return second if is_drafted and choices.allows(second) else choices.peek(node)


def check_ragged_batches(decoder: Decoder, manifest: Manifest, temperature: float) -> int:
    """Assert that answers of many lengths, behind a cancelled one, are plain ones; returns the accepted tokens."""
    prompts = [[5, 1, 2], [3], [1, 4, 0, 2] * 4, [2] * 9, [0, 5], [4] * 20]
    sampling = SamplingConfig(temperature=temperature, seed=3)
    configs = [GenerationConfig(max_tokens=20 + 4 * i, sampling=sampling) for i in range(len(prompts))]
    cancelled = decoder.submit([1, 3, 5], configs[-1])
    for _ in range(3):
        decoder.step()
    decoder.cancel(cancelled)
    expected = [reference(manifest, *each) for each in zip(prompts, configs, strict=True)]
    requests = [decoder.submit(*each) for each in zip(prompts, configs, strict=True)]
    decoder.finish(*requests)
    assert [request.output_token_ids for request in requests] == expected
    assert decode(decoder, prompts[::-1], configs[::-1]) == expected[::-1]
    return sum(request.stats.num_accepted_tokens for request in requests)

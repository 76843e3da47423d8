"""A speculator without weights as a source: texts with their states, requests for drafts, and what it proposes."""

from dataclasses import replace

import numpy as np

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.speculators.speculator_request import SpeculatorRequest
from reader_edge_runtime.drafting.speculators.speculator_source import SpeculatorSource
from tests.fake_speculator import FakeSpeculator
from tests.fake_target import FakeTarget, make_manifest

MANIFEST = replace(make_manifest(6, max_context=256), state_ids=(0,))
NOTHING = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32)


def speculator_of(order: int = 3, sharpness: float = 4.0, max_context: int = 256) -> FakeSpeculator:
    manifest = replace(MANIFEST, max_context=max_context)
    return FakeSpeculator(FakeTarget(manifest, order, sharpness), manifest)


def source_of(speculator: FakeSpeculator, max_slots: int = 4) -> SpeculatorSource:
    source = SpeculatorSource(speculator, (0,), MANIFEST.vocab_size, max_slots)
    speculator.num_stepped.clear()  # those that were measured
    speculator.is_checked = True
    return source


def drafter_of(source: SpeculatorSource) -> RetrievalDrafter:
    return RetrievalDrafter(DraftConfig(is_logits_used=False), [source]).wait()


def hear(request: SpeculatorRequest, start: int) -> None:
    """Have a target tell what it thinks of a text's tokens from a position on, but for the last."""
    tokens = list(request.token_ids[start:-1])
    states = np.array([[token, position] for position, token in enumerate(tokens, start)], np.float32)
    rows = range(len(tokens) - 1, len(tokens))
    request.observe(ScoredTree(DraftTree.chain(tokens), rows, start, *NOTHING, 6, None, states[:, None]))


def begun(source: SpeculatorSource, text: list[int]) -> SpeculatorRequest:
    request = source.begin(RequestContext(text))
    hear(request, 0)
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

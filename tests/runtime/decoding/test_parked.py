"""Requests that wait for devices, lose their slots and come back give what they would give alone."""

import numpy as np
import pytest

from reader_edge_runtime.config import EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.device_drafts import DeviceDrafts, DeviceTree, TextCheck
from reader_edge_runtime.drafting.draft_hints import DraftHints
from tests.fake_hybrid import FakeHybridTarget, hybrid_manifest
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, reference

VOCAB_SIZE = 6
KINDS = {
    "attention": (FakeTarget, make_manifest(VOCAB_SIZE)),
    "states": (FakeHybridTarget, hybrid_manifest(VOCAB_SIZE)),
}


def random_tree(random: np.random.Generator, root: int) -> DraftTree:
    tree = DraftTree.root(root)
    for _ in range(random.integers(6)):
        parent, token_id = int(random.integers(len(tree))), int(random.integers(VOCAB_SIZE))
        if tree.child(parent, token_id) < 0:
            tree.add(token_id, parent, "device")
    return tree


def act(random: np.random.Generator, request: Request) -> None:
    """What a request's device may do between two steps: leave, come back, draft, or nothing."""
    device, text = request.device, request.token_ids
    if device is None or not request.is_running:
        return
    if random.random() < 0.1:
        device.hold()
    elif random.random() < 0.3:
        device.go_on()
    if random.random() < 0.5:
        device.leave(DeviceTree(len(text), random_tree(random, text[-1]), TextCheck(text).value))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_whoever_waits_and_for_however_long_the_tokens_are_the_same(kind: str, seed: int) -> None:
    make_target, manifest = KINDS[kind]
    random = np.random.default_rng(seed)
    target = make_target(manifest)
    decoder = Decoder(target, RandomDrafter(VOCAB_SIZE, 5, seed), EngineConfig(max_batch=3, prefill_chunk=4))
    asked: list[tuple[list[int], GenerationConfig, DeviceDrafts | None]] = []
    for number in range(7):
        prompt = random.integers(VOCAB_SIZE, size=random.integers(1, 20)).tolist()
        sampling = SamplingConfig(temperature=0.8 * (number % 2), seed=number)
        device = None if number == 6 else DeviceDrafts(is_lockstep=number % 3 != 0)
        asked.append((prompt, GenerationConfig(max_tokens=25, sampling=sampling), device))
    requests = [Request(prompt, config, manifest, hints=DraftHints(device=device)) for prompt, config, device in asked]
    for request in requests:
        decoder.enqueue(request)
    num_parked = 0
    for _ in range(5000):
        for request in requests:
            act(random, request)
        decoder.step()
        num_parked = max(num_parked, len(decoder.scheduler.parked))
        if not any(request.is_running for request in requests):
            break
    assert num_parked > 1
    assert not decoder.running
    for request, (prompt, config, _) in zip(requests, asked, strict=True):
        assert request.error is None
        assert request.output_token_ids == reference(manifest, prompt, config, target)

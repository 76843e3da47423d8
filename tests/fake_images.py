"""A target without weights that sees images: its logits are a function of the features and rotary positions of rows."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.config import EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.sampling.sampler import Sampler
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.execution.inputs import prepare_inputs
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.package.images import ImageRules
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.package_parts import ImagesPart
from reader_edge_runtime.target import Pass
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import chosen

VOCAB_SIZE, IMAGE = 6, 5
Prompt = tuple[list[int], "list[EncodedImage]"]  # IMAGE stands for each token of an image


@dataclass
class EncodedImage:
    digest: bytes
    rows: int
    columns: int
    features: Float32Array

    @property
    def num_tokens(self) -> int:
        return len(self.features)

    def load(self, may_run: object) -> bool:
        return True

    def drop(self) -> None:
        """It always has them."""


def seeing_manifest(max_context: int = 512, axes: int = 3, seen_whole: str = "none") -> Manifest:
    manifest = replace(make_manifest(VOCAB_SIZE, max_context), head_dim=5)
    return replace(manifest, images=images_part(axes, seen_whole))


def images_part(axes: int = 3, seen_whole: str = "none") -> ImagesPart:
    rules = ImageRules("qwen3_5", 2, 2, "bicubic", min_pixels=16, max_pixels=1 << 16, position_side=4)
    return ImagesPart(token_id=IMAGE, width=2, rules=rules, position_axes=axes, sees_whole_image=seen_whole)


def image(seed: int, rows: int, columns: int) -> EncodedImage:
    features = np.random.default_rng(seed).standard_normal((rows * columns, 2)).astype(np.float32)
    return EncodedImage(hashlib.sha256(features.tobytes()).digest(), rows, columns, features)


def prompt(*parts: list[int] | EncodedImage) -> Prompt:
    """Texts and images in their order."""
    images = [part for part in parts if isinstance(part, EncodedImage)]
    pieces = [[IMAGE] * len(part.features) if isinstance(part, EncodedImage) else part for part in parts]
    return [token_id for piece in pieces for token_id in piece], images


class SeeingTarget(FakeTarget):
    """Rows of the cache have what a graph would read of a token, its position on three axes, and how much it saw."""

    def logits_of(self, cache: Cache, wanted: Pass) -> Float32Array:
        assert isinstance(cache, HostCache)
        self.num_passes += 1
        inputs = prepare_inputs(cache, wanted, self.manifest, self.min_rows)
        index, mask = cast(Int64Array, inputs["image_index"]), inputs["tree_mask"]
        features = inputs["image_features"][np.maximum(index, 0), 0]
        axes = inputs["position_ids"]
        axes = axes if axes.ndim == 3 else np.broadcast_to(axes, (3, *axes.shape))
        read = np.where(index >= 0, features, inputs["input_ids"])
        logits = np.zeros((*inputs["logit_rows"].shape, self.manifest.vocab_size), np.float32)
        for b, start in enumerate(inputs["write_pos"]):
            rows = cache.slab[0, wanted.first_slot + b, 0]
            rows[start : start + index.shape[1], :5] = np.stack([read[b], *axes[:, b], (mask[b, 0] == 0).sum(1)], 1)
            for r, node in enumerate(inputs["logit_rows"][b]):
                seen = np.flatnonzero(mask[b, 0, node] == 0)
                logits[b, r] = self.logits_of_rows(rows[seen, :5])
        return logits

    def logits_of_rows(self, rows: Float32Array) -> Float32Array:
        """Logits (V,) of a node that sees these rows, float32 (n, 5): all of them, and where they are."""
        key = int.from_bytes(hashlib.sha256(np.ascontiguousarray(rows, np.float32).tobytes()).digest()[:8])
        values = np.random.Generator(np.random.Philox(key=key)).standard_normal(self.manifest.vocab_size)
        return (self.sharpness * values).astype(np.float32)


def rows_of(given: Prompt, token_ids: Sequence[int], axes: int, seen_whole: str) -> Float32Array:
    """What a model reads of a text, written down token by token."""
    (prompt_ids, images), rows, position, place = given, list[list[float]](), 0, 0
    left = list(images)
    while place < len(token_ids):
        if place < len(prompt_ids) and token_ids[place] == IMAGE:
            seen = left.pop(0)
            for number, feature in enumerate(seen.features[:, 0]):
                here = [position, position + number // seen.columns, position + number % seen.columns]
                num_seen = len(seen.features) if seen_whole == "all" else number + 1
                rows.append([feature, *(here if axes == 3 else [place + number] * 3), place + num_seen])
            place += len(seen.features)
            position = position + max(seen.rows, seen.columns) if axes == 3 else place
        else:
            rows.append([token_ids[place], position, position, position, place + 1])
            place, position = place + 1, position + 1
    return np.array(rows, np.float32)


def reference(given: Prompt, config: GenerationConfig, axes: int = 3, seen_whole: str = "none") -> list[int]:
    """Plain decoding, without trees or cache."""
    target, (prompt_ids, _) = SeeingTarget(seeing_manifest()), given
    texts = [token_id for token_id in prompt_ids if token_id != IMAGE]
    sampler = Sampler(config.sampling or SamplingConfig(), VOCAB_SIZE, texts)
    token_ids = list(prompt_ids)
    while len(token_ids) - len(prompt_ids) < config.max_tokens:
        logits = target.logits_of_rows(rows_of(given, token_ids, axes, seen_whole))
        token_ids.append(chosen(sampler, logits, len(token_ids)))
    return token_ids[len(prompt_ids) :]


def seeing_decoder(
    drafter: Drafter, max_batch: int = 4, chunk: int = 7, axes: int = 3, seen_whole: str = "none"
) -> Decoder:
    target = SeeingTarget(seeing_manifest(axes=axes, seen_whole=seen_whole))
    return Decoder(target, drafter, EngineConfig(max_batch=max_batch, prefill_chunk=chunk))


def submit(decoder: Decoder, given: Prompt, config: GenerationConfig) -> Request:
    request = Request(given[0], config, decoder.target.manifest, images=given[1])
    decoder.enqueue(request)
    return request


def decode(
    decoder: Decoder, prompts: Sequence[Prompt], configs: Sequence[GenerationConfig]
) -> list[tuple[list[int], int]]:
    """Answers, and how many tokens of each prompt were reused."""
    requests = [submit(decoder, *each) for each in zip(prompts, configs, strict=True)]
    decoder.finish(*requests)
    return [(request.output_token_ids, request.stats.num_reused_tokens) for request in requests]

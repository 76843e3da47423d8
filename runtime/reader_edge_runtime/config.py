"""Options as frozen values, checked when they are made: of an engine here, of one answer in generation_config.py."""

import os
from dataclasses import dataclass
from typing import Annotated

from reader_edge_runtime.generation_config import GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.plug_ins import provider_names
from reader_edge_runtime.untrusted.config_checks import Range, check, refusing_unknown, require
from reader_edge_runtime.untrusted.user_input import given_path

__all__ = ["DraftConfig", "EngineConfig", "GenerationConfig", "Grammar", "SamplingConfig", "ServingConfig"]


@refusing_unknown({})
@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a model is run on this machine.

    threads: threads to compute with, no more than the cores whose time this process may take, by affinity and quota;
        0 takes all of these. A warning tells of a number that was cut.
    prefill_chunk: prompt tokens per forward pass; 0 chooses by model and length of the past (`Target.prefill_chunk`).
    max_batch: requests decoded together; others wait.
    max_kv_bytes: most bytes of the KV cache, states of recurrent layers included. A request waits until its prompt and
        longest possible answer fit beside the running ones; one that cannot fit alone is refused. 0 is no limit.
    is_calibrated: choose tree sizes by this machine's pass times, which are measured once and kept in the user's cache.
    is_probed: run the width probe at load. A package with exact attention in which it finds a difference is decoded
        plainly, unless near ties are guarded.
    uses_native: use native kernels where they were built.
    provider: one of `provider_names()`; None chooses by package, wheel and machine.
    is_text_literal: read control tokens in conversations as plain text; only the chat template writes control tokens.
        For messages from strangers.
    is_near_tie_guarded: where the probe finds a difference, decide near ties of greedy decoding by single-token passes;
        requests that do not simply take the best token are decoded plainly there.
    prefix_cache: folder in which KV rows and states of prompts and answers outlive the process, for later requests with
        the same `cache_salt`; None keeps them in memory alone. They reveal the texts, so the folder is this user's.
    prefix_bytes: most bytes of that folder; what was used longest ago goes first.
    signature_key: file of a public key; packages that its owner has not signed are refused. None runs any.
    max_image_tokens: most tokens of an image that a model sees whole in whatever size; larger ones are shrunk. What its
        maker allows at most may take minutes. Tiles, and fixed sizes, stay.
    is_drafted: False decodes every request plainly and loads nothing to draft with. `Engine.draft_permission` shows
        what this and the probe led to.
    """

    threads: Annotated[int, Range(0, 1024)] = 0
    prefill_chunk: Annotated[int, Range(0, 8192)] = 0
    max_batch: Annotated[int, Range(1, 256)] = 8
    max_kv_bytes: Annotated[int, Range(0, 2**63 - 1)] = 0
    is_calibrated: bool = True
    is_probed: bool = True
    uses_native: bool = True
    provider: str | None = None
    is_near_tie_guarded: bool = False
    is_text_literal: bool = False
    is_drafted: bool = True
    prefix_cache: str | os.PathLike[str] | None = None
    prefix_bytes: Annotated[int, Range(1, 2**63 - 1)] = 8_000_000_000
    signature_key: str | os.PathLike[str] | None = None
    max_image_tokens: Annotated[int, Range(256, 1 << 20)] = 4096

    def __post_init__(self) -> None:
        check(self)
        if self.prefix_cache is not None:
            given_path(self.prefix_cache, "prefix_cache")
        if self.signature_key is not None:
            given_path(self.signature_key, "signature_key")
        if self.provider is not None:
            is_known = isinstance(self.provider, str) and self.provider in provider_names()
            require(is_known, "provider", self.provider, f"one of {', '.join(provider_names())}")


@refusing_unknown({})
@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Limits of draft trees, and what the drafter learns from.

    max_nodes: most nodes of a draft tree, the pending token included. One pass verifies 64 at most; over several boxes
        two may go behind each other.
    max_depth: longest path below the pending token.
    is_history_used: draft from past requests of the same engine.
    max_history_tokens: most tokens of past requests that are kept.
    is_logits_used: learn which successors the target thinks likely, from every token that it scores.
    max_harvested_tokens: most tokens at a prompt's end whose successors are learned. Each costs a row of logits, so
        fewer are learned where measured pass times say that they do not pay.
    max_recorded_pairs: most token pairs whose successors are kept, rounded up to a power of two; 64 bytes each.
    """

    max_nodes: Annotated[int, Range(1, 256)] = 128
    max_depth: Annotated[int, Range(1, 255)] = 64
    is_history_used: bool = True
    max_history_tokens: Annotated[int, Range(0, 100_000_000)] = 200_000
    is_logits_used: bool = True
    max_harvested_tokens: Annotated[int, Range(0, 1_000_000)] = 64
    max_recorded_pairs: Annotated[int, Range(1, 1 << 26)] = 65_536

    def __post_init__(self) -> None:
        check(self)


@refusing_unknown({})
@dataclass(frozen=True, slots=True)
class ServingConfig:
    """Limits of an `AsyncEngine`.

    max_waiting: requests beyond `EngineConfig.max_batch` that may wait; more are refused.
    prompt_budget: prompt tokens that are scored for each token of the running answers. Less favours running answers,
        more favours new ones.
    """

    max_waiting: Annotated[int, Range(0, 1_000_000)] = 64
    prompt_budget: Annotated[int, Range(1, 1_000_000)] = 128

    def __post_init__(self) -> None:
        check(self)

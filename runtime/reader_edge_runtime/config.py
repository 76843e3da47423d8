"""Options as frozen values, checked when they are made: of an engine here, of one answer in generation_config.py."""

from dataclasses import dataclass
from typing import Annotated

from reader_edge_runtime.config_checks import Range, check, require
from reader_edge_runtime.generation_config import GenerationConfig, Grammar, SamplingConfig

__all__ = ["DraftConfig", "EngineConfig", "GenerationConfig", "Grammar", "SamplingConfig", "ServingConfig"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a model is run on this machine.

    threads: ONNX Runtime threads; 0 takes the cores this process may use.
    prefill_chunk: prompt tokens per forward pass; 0 takes what suits model and past (`Target.prefill_chunk`).
    max_batch: sequences decoded together; further ones wait.
    max_kv_bytes: of the KV cache at most, with the states of recurrent layers: requests wait until prompt and longest
        possible answer fit beside those that run, and one that would not fit alone is refused. 0 lets it grow as it
        must.
    is_calibrated: take the tree size from this machine's measured pass times (measured once, kept in the user's cache).
    is_probed: run the width probe at load (measuring/width_probe.py). A package with exact attention that it finds a
        difference in is decoded plainly, unless near ties are guarded.
    uses_native: take native kernels where they were built.
    provider: "cpu" or "cuda"; None takes what the package, the wheel and the machine offer.
    is_text_literal: texts of conversations hold no control token, whatever they spell: those stand only where the chat
        template puts them. For texts of people who are not trusted.
    is_near_tie_guarded: where the probe finds a difference, decide near ties of greedy decoding by single-token passes;
        requests whose choice is not simply the best token are decoded plainly there.
    is_drafted: False decodes every request plainly, and loads nothing to draft with. What comes of it and of
        the probe is `Engine.draft_permission`.
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

    def __post_init__(self) -> None:
        check(self)
        is_known = isinstance(self.provider, str | None) and self.provider in (None, "cpu", "cuda")
        require(is_known, "provider", self.provider, "'cpu' or 'cuda'")


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """What may be drafted.

    max_nodes: nodes of a draft tree, the pending token included. max_depth: longest path below the pending token.
    is_history_used: learn from past requests of the same engine, of which max_history_tokens tokens are kept.
    is_logits_used: learn which successors the target thinks likely, from every token it scores.
    max_harvested_tokens: tokens at a prompt's end whose successors are learned, at most: each costs a row of logits, so
        where passes were measured only as many are as pay.
    max_recorded_pairs: token pairs whose successors are kept, rounded up to a power of two; 64 bytes each.
    """

    max_nodes: Annotated[int, Range(1, 256)] = 64
    max_depth: Annotated[int, Range(1, 255)] = 32
    is_history_used: bool = True
    max_history_tokens: Annotated[int, Range(0, 100_000_000)] = 200_000
    is_logits_used: bool = True
    max_harvested_tokens: Annotated[int, Range(0, 1_000_000)] = 64
    max_recorded_pairs: Annotated[int, Range(1, 1 << 26)] = 65_536

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """How many requests are served at once, and how (`AsyncEngine`).

    max_waiting: requests beyond `EngineConfig.max_batch` that may wait; more are refused.
    prompt_budget: prompt tokens for each token of the running answers, after which no further chunk of a prompt is
        begun: fewer let running answers go on sooner, more let new ones begin sooner.
    """

    max_waiting: Annotated[int, Range(0, 1_000_000)] = 64
    prompt_budget: Annotated[int, Range(1, 1_000_000)] = 128

    def __post_init__(self) -> None:
        check(self)

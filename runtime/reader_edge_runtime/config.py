"""Options as frozen values, checked when they are made.

Each `__post_init__` raises `ConfigError` with the value and the allowed range.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reader_edge_runtime.errors import ConfigError


def _require(is_valid: bool, name: str, value: object, allowed: str) -> None:
    if not is_valid:
        raise ConfigError(f"{name} is {value!r}, but must be {allowed}.")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a model is run on this machine.

    threads: ONNX Runtime threads; 0 takes the cores this process may use.
    prefill_chunk: prompt tokens per forward pass; 0 takes what suits model and past (`Target.prefill_chunk`).
    max_batch: sequences decoded together; further ones wait.
    is_calibrated: take the tree size from this machine's measured pass times (measured once, kept in the user's cache).
    provider: "cpu" or "cuda"; None takes what the package, the wheel and the machine offer.
    is_near_tie_guarded: decide near ties of wide passes by single-token passes, where the width probe finds a
        difference; for greedy decoding.
    is_probed: run the width probe at load (see `reader_edge_runtime.measuring.width_probe`). A package with exact
        attention that it finds a difference in is decoded plainly, unless near ties are guarded.
    uses_native: take the native kernels of reader-edge-native where they are installed.
    """

    threads: int = 0
    prefill_chunk: int = 0
    max_batch: int = 8
    is_calibrated: bool = True
    is_probed: bool = True
    uses_native: bool = True
    provider: str | None = None
    is_near_tie_guarded: bool = False

    def __post_init__(self) -> None:
        _require(0 <= self.threads <= 1024, "threads", self.threads, "from 0 to 1024")
        _require(0 <= self.prefill_chunk <= 8192, "prefill_chunk", self.prefill_chunk, "from 0 to 8192")
        _require(self.provider in (None, "cpu", "cuda"), "provider", self.provider, "'cpu' or 'cuda'")
        _require(1 <= self.max_batch <= 256, "max_batch", self.max_batch, "from 1 to 256")


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """What may be drafted.

    max_nodes: nodes of a draft tree, the pending token included.
    max_depth: longest path below the pending token.
    is_history_used: learn from past requests of the same engine.
    max_history_tokens: tokens of past requests that are kept.
    is_logits_used: learn which successors the target thinks likely, from every token it scores.
    max_harvested_tokens: tokens at a prompt's end whose successors are learned, at most: each costs a row of logits, so
        where passes were measured only as many are as pay.
    max_recorded_pairs: token pairs whose successors are kept, rounded up to a power of two; 64 bytes each.
    """

    max_nodes: int = 64
    max_depth: int = 32
    is_history_used: bool = True
    max_history_tokens: int = 200_000
    is_logits_used: bool = True
    max_harvested_tokens: int = 64
    max_recorded_pairs: int = 65_536

    def __post_init__(self) -> None:
        _require(1 <= self.max_nodes <= 256, "max_nodes", self.max_nodes, "from 1 to 256")
        _require(1 <= self.max_depth <= 255, "max_depth", self.max_depth, "from 1 to 255")
        _require(
            0 <= self.max_history_tokens <= 100_000_000,
            "max_history_tokens",
            self.max_history_tokens,
            "from 0 to 100000000",
        )
        _require(
            0 <= self.max_harvested_tokens <= 1_000_000,
            "max_harvested_tokens",
            self.max_harvested_tokens,
            "from 0 to 1000000",
        )
        _require(
            1 <= self.max_recorded_pairs <= 1 << 26, "max_recorded_pairs", self.max_recorded_pairs, "from 1 to 67108864"
        )


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How the target's logits become one token. Applied in the order of the fields.

    repetition_penalty: divides positive and multiplies negative logits of tokens seen before, prompt included
        (CTRL, arXiv 1909.05858, section 4.1); 1 is off.
    logit_bias: token id -> value added to its logit.
    temperature: 0 takes the most likely token (the lowest id of equals).
    top_k: keep the k most likely tokens; 0 is off.
    top_p: keep the smallest set of most likely tokens whose probability reaches p; 1 is off.
    min_p: drop tokens less likely than min_p times the most likely one; 0 is off.
    seed: one random number is drawn per (seed, position).
    """

    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        penalty = self.repetition_penalty
        _require(0.01 <= penalty <= 100, "repetition_penalty", penalty, "from 0.01 to 100")
        for token_id, bias in self.logit_bias.items():
            _require(token_id >= 0, "logit_bias token id", token_id, "0 or more")
            _require(-1e4 <= bias <= 1e4, f"logit_bias of token {token_id}", bias, "from -10000 to 10000")
        _require(0 <= self.temperature <= 100, "temperature", self.temperature, "from 0 to 100")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 to 1")
        _require(0 <= self.seed < 2**64, "seed", self.seed, "from 0 to 2**64 - 1")


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """One request.

    max_tokens: new tokens at most; the context limit may end the answer before.
    sampling: how tokens are chosen.
    stop: strings that end the answer; the text ends before the first of them.
    stop_token_ids: token ids that end the answer besides the model's own end tokens.
    ignores_eos: go on past the model's end tokens (for measuring).
    is_drafted: False decodes plainly: every draft tree has one node.
    is_scored: sum up the log-probabilities of the answer's tokens, as the target gives them at temperature 1.
    """

    max_tokens: int = 512
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignores_eos: bool = False
    is_drafted: bool = True
    is_scored: bool = False

    def __post_init__(self) -> None:
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
        _require("" not in self.stop, "stop", self.stop, "strings that are not empty")
        _require(all(i >= 0 for i in self.stop_token_ids), "stop_token_ids", self.stop_token_ids, "0 or more")

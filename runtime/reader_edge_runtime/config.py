"""Options as frozen values, checked when they are made: `ConfigError` names the value and what is allowed.

Numbers of numpy are taken, and kept as Python's.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Annotated, Any, TypeVar, get_args, get_origin

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.shown import shown


@dataclass(frozen=True, slots=True)
class Range:
    """What a number may be, both ends included; words say it where the numbers would be hard to read."""

    least: float
    most: float = math.inf
    words: str = ""

    def __str__(self) -> str:
        return self.words or (f"from {self.least} to {self.most}" if self.most < math.inf else f"{self.least} or more")


_Number = TypeVar("_Number", int, float)
_TOKEN_IDS = Range(0, 2**31 - 1)
_BIASES = Range(-10_000, 10_000)
_GRAMMARS = ("json_schema", "regex", "choice", "lark")
_MAX_GRAMMAR = 1 << 16  # characters


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a model is run on this machine.

    threads: ONNX Runtime threads; 0 takes the cores this process may use.
    prefill_chunk: prompt tokens per forward pass; 0 takes what suits model and past (`Target.prefill_chunk`).
    max_batch: sequences decoded together; further ones wait.
    max_kv_bytes: of the KV cache at most: requests wait until prompt and longest possible answer fit beside those that
        run, and one that would not fit alone is refused. 0 lets it grow as it must.
    is_calibrated: take the tree size from this machine's measured pass times (measured once, kept in the user's cache).
    is_probed: run the width probe at load (measuring/width_probe.py). A package with exact attention that it finds a
        difference in is decoded plainly, unless near ties are guarded.
    uses_native: take the native kernels of reader-edge-native where they are installed.
    provider: "cpu" or "cuda"; None takes what the package, the wheel and the machine offer.
    is_near_tie_guarded: where the probe finds a difference, decide near ties of greedy decoding by single-token passes.
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

    def __post_init__(self) -> None:
        _check(self)
        is_known = isinstance(self.provider, str | None) and self.provider in (None, "cpu", "cuda")
        _require(is_known, "provider", self.provider, "'cpu' or 'cuda'")


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
        _check(self)


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

    repetition_penalty: Annotated[float, Range(0.01, 100)] = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    temperature: Annotated[float, Range(0, 100)] = 0.0
    top_k: Annotated[int, Range(0)] = 0
    top_p: Annotated[float, Range(math.ulp(0.0), 1, "above 0 and at most 1")] = 1.0
    min_p: Annotated[float, Range(0, 1)] = 0.0
    seed: Annotated[int, Range(0, 2**64 - 1, "from 0 to 2**64 - 1")] = 0

    def __post_init__(self) -> None:
        _check(self)
        bias = self.logit_bias
        _require(isinstance(bias, Mapping), "logit_bias", bias, "a mapping of token ids to numbers")
        ids = [_number("logit_bias token id", token_id, int, _TOKEN_IDS) for token_id in bias]
        values = [_number(f"logit_bias of token {token_id}", bias[token_id], float, _BIASES) for token_id in bias]
        object.__setattr__(self, "logit_bias", dict(zip(ids, values, strict=True)))


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer may be. Needs the extra "grammar".

    It may be a stranger's: each is followed by a process that is bounded in time and memory.

    kind: what `text` is: "json_schema" (an object), "regex" (Rust's syntax), "choice" (a JSON list of texts, one of
        which is the answer), or "lark" (llguidance's form of Lark grammars).
    name: what refusals call it; by its kind where this is empty.
    """

    kind: str
    text: str
    name: str = ""

    def __post_init__(self) -> None:
        is_known = isinstance(self.kind, str) and self.kind in _GRAMMARS
        _require(is_known, "kind", self.kind, f"one of {', '.join(_GRAMMARS)}")
        _require(isinstance(self.text, str), "text", self.text, "a text")
        if len(self.text) > _MAX_GRAMMAR:
            size = f"{len(self.text)} characters, but may have {_MAX_GRAMMAR} at most"
            raise ConfigError(f"The grammar has {size}: shorten it, or the schemas and tools that it is made of.")
        _require(isinstance(self.name, str), "name", self.name, "a text")
        if not self.name:
            object.__setattr__(self, "name", f"grammar of kind {self.kind!r}")
        if self.kind == "choice":
            _require(_is_choice(self.text), "text", self.text[:80], "a JSON list of texts that are not empty")


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """One request.

    max_tokens: new tokens at most; the context limit may end the answer before.
    sampling: how tokens are chosen.
    stop: strings that end the answer; the text ends before the first of them.
    stop_token_ids: token ids that end the answer besides the model's own end tokens.
    grammar: what the answer must be; None for anything.
    prediction: what the answer may say, or a part of it, to draft from; "" for no guess.
    ignores_eos: go on past the model's end tokens (for measuring).
    is_drafted: False decodes plainly: every draft tree has one node.
    wants_logprobs: keep the log-probability of each token, as the target gives it at temperature 1, and those of the
        num_top_logprobs most likely tokens.
    is_scored: sum up the log-probabilities of the answer's tokens, as the target gives them at temperature 1.
    """

    max_tokens: Annotated[int, Range(1)] = 512
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None
    prediction: str = ""
    ignores_eos: bool = False
    is_drafted: bool = True
    wants_logprobs: bool = False
    num_top_logprobs: Annotated[int, Range(0, 1000)] = 0
    is_scored: bool = False

    def __post_init__(self) -> None:
        _check(self)
        _require(isinstance(self.sampling, SamplingConfig), "sampling", self.sampling, "a SamplingConfig")
        _require(isinstance(self.grammar, Grammar | None), "grammar", self.grammar, "a Grammar")
        _require(isinstance(self.prediction, str), "prediction", self.prediction, "a text")
        stop, ids = self.stop, self.stop_token_ids
        is_list = isinstance(stop, Sequence) and not isinstance(stop, str)
        is_text = is_list and all(isinstance(text, str) and text for text in stop)
        _require(is_text, "stop", stop, "texts that are not empty")
        _require(isinstance(ids, Sequence), "stop_token_ids", ids, "a tuple of token ids")
        numbers = tuple(_number("stop_token_ids", token_id, int, _TOKEN_IDS) for token_id in ids)
        object.__setattr__(self, "stop", tuple(stop))
        object.__setattr__(self, "stop_token_ids", numbers)


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
        _check(self)


def _is_choice(text: str) -> bool:
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(choices, list) and bool(choices) and all(isinstance(each, str) and each for each in choices)


def _check(config: Any) -> None:
    """Hold a config's numbers to the ranges that they are annotated with, and its flags to being flags."""
    for each in fields(config):
        value = getattr(config, each.name)
        if each.type is bool:
            _require(isinstance(value, bool), each.name, value, "True or False")
        elif get_origin(each.type) is Annotated:
            object.__setattr__(config, each.name, _number(each.name, value, *get_args(each.type)))


def _number(name: str, value: Any, kind: type[_Number], allowed: Range) -> _Number:
    is_kind = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    _require(is_kind, name, value, "a whole number" if kind is int else "a number")
    _require(allowed.least <= value <= allowed.most, name, value, str(allowed))
    return kind(value)


def _require(is_valid: bool, name: str, value: object, allowed: str) -> None:
    if not is_valid:
        raise ConfigError(f"{name} is {shown(value)}, but must be {allowed}.")

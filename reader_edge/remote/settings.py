"""What is asked of an answer and what is told of it, as facts of frames."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from reader_edge.remote.frames import FrameError
from reader_edge_runtime.acceptance import EXACT
from reader_edge_runtime.config import GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.errors import ConfigError, PromptError
from reader_edge_runtime.generation_config import MAX_BIASES, MAX_SALT_CHARACTERS, MAX_STOP_CHARACTERS, MAX_STOPS
from reader_edge_runtime.outside.user_input import shown
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.conversation_check import sound_conversation

_BEYOND = 2**63  # all counts and seconds

Facts = dict[str, Any]

_PLAIN = ("max_tokens", "stop", "stop_token_ids", "prediction", "ignores_eos", "is_drafted", "is_scored", "cache_salt")
_ABSENT = ("wants_logprobs", "wants_prompt_logprobs", "splits_thinking")  # they take more than tokens back
_SAMPLING = tuple(field.name for field in fields(SamplingConfig) if field.name != "logit_bias")
_GRAMMAR = ("kind", "text", "name")
_BY_NAME = ("drafted_by_source", "accepted_by_source", "asked_by_source")  # counts; others are by numbers
_METER = ("num_tokens", "num_changed", "nats_per_token", "repeated_4grams")  # numbers of a lossy answer
_CONVERSATION = ("messages", "template_args", "continues_final_message")


def facts_of(config: GenerationConfig) -> Facts:
    """Raises ConfigError for what a remote server cannot be asked for."""
    for name in _ABSENT:
        if getattr(config, name):
            raise ConfigError(f"{name} is not given by a remote server: leave it out.")
    if config.acceptance is not EXACT:
        raise ConfigError(f"The acceptance rule {config.acceptance.name!r} is not given by a server: leave it out.")
    facts: Facts = {name: getattr(config, name) for name in _PLAIN}
    if (sampling := config.sampling) is not None:  # else as the server's model recommends
        facts["sampling"] = {name: getattr(sampling, name) for name in _SAMPLING}
        facts["sampling"]["logit_bias"] = list(sampling.logit_bias.items())
    if config.grammar is not None:
        facts["grammar"] = {name: getattr(config.grammar, name) for name in _GRAMMAR}
    return facts


def config_of(facts: Mapping[str, Any]) -> GenerationConfig:
    """The config that `facts_of` was given. Raises ConfigError for what it could not have given."""
    plain = {name: value for name, value in facts.items() if name not in ("sampling", "grammar")}
    _check_names(plain, _PLAIN)
    _check_size("stop", plain.get("stop"), list, MAX_STOPS)
    _check_size("stop_token_ids", plain.get("stop_token_ids"), list, MAX_BIASES)
    for text in plain["stop"] if isinstance(plain.get("stop"), list) else ():
        _check_size("A text of stop", text, str, MAX_STOP_CHARACTERS)
    _check_size("cache_salt", plain.get("cache_salt"), str, MAX_SALT_CHARACTERS)
    grammar = None
    if facts.get("grammar") is not None:
        given = _object(facts["grammar"], "grammar", _GRAMMAR)
        grammar = Grammar(*(given.get(name, "") for name in _GRAMMAR))
    return GenerationConfig(**plain, sampling=_sampling_of(facts.get("sampling")), grammar=grammar)


def _sampling_of(facts: object) -> SamplingConfig | None:
    if facts is None:
        return None
    sampling = _object(facts, "sampling", (*_SAMPLING, "logit_bias"))
    pairs = sampling.pop("logit_bias", [])
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ConfigError(f"logit_bias is {shown(pairs)}, but must be a list of pairs.")
    _check_size("logit_bias", pairs, list, MAX_BIASES)
    try:
        bias = dict(pairs)
    except TypeError:
        raise ConfigError(f"logit_bias is {shown(pairs)}, but must name token ids.") from None
    return SamplingConfig(**sampling, logit_bias=bias)


def conversation_facts(chat: Conversation) -> Facts:
    """A conversation, which a server puts into its template.

    Raises PromptError for tools, whose calls are parts of a text that only the server's template knows, and for what no
    template can be given.
    """
    if chat.tools:
        raise PromptError("Tools cannot be declared over a link: ask the server's '/v1/chat/completions' for calls.")
    chat = sound_conversation(chat)
    return {name: getattr(chat, name) for name in _CONVERSATION}


def conversation_of(facts: object) -> Conversation:
    """Raises ConfigError; whether its messages are some is found out by the chat template."""
    given: Facts = {"messages": []}
    return Conversation(**given | _object(facts, "conversation", _CONVERSATION))


def stats_facts(stats: GenerationStats) -> Facts:
    values = {field.name: getattr(stats, field.name) for field in fields(stats)}
    return {name: list(value.items()) if isinstance(value, Counter) else value for name, value in values.items()}


def stats_of(facts: object) -> GenerationStats:
    """Raises FrameError for what `stats_facts` could not have given."""
    stats = GenerationStats()
    if not isinstance(facts, dict):
        raise FrameError("A frame has no statistics where there must be some.")
    for field in fields(stats):
        own = getattr(stats, field.name)
        value: Any = facts.get(field.name, None if own is None else 0)
        if isinstance(own, Counter):
            kind = str if field.name in _BY_NAME else int
            if not isinstance(value, list) or not all(_is_count(pair, kind) for pair in value):
                raise FrameError(f"A frame has {shown(value)} as {field.name}.")
            own.update({key: number for key, number in value})
        elif _is_number(value):
            setattr(stats, field.name, float(value) if own is None else type(own)(value))
        elif value is not None or own is not None:  # an answer may not be scored
            raise FrameError(f"A frame has {shown(value)} as {field.name}.")
    return stats


def deviation_of(facts: object) -> Facts:
    """How far a lossy server's answer deviates; {} of an exact one. Raises FrameError for what no meter tells."""
    if not isinstance(facts, dict) or (facts and not _is_meter(facts)):
        raise FrameError(f"A frame has {shown(facts)} as deviation.")
    return facts


def hash_of(token_ids: Sequence[int]) -> bytes:
    """SHA-256 of an answer's tokens."""
    return hashlib.sha256(np.array(token_ids, "<u4").tobytes()).digest()


def _is_meter(facts: Facts) -> bool:
    """Whether it has what the sentence about a lossy answer tells."""
    usual = facts.get("usual_repeated_4grams")
    is_told = isinstance(facts.get("rule"), str) and isinstance(facts.get("figures"), dict)
    return is_told and all(_is_number(facts.get(name)) for name in _METER) and (usual is None or _is_number(usual))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _BEYOND


def _is_count(pair: Any, kind: type) -> bool:
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    key, number = pair
    return isinstance(key, kind) and isinstance(number, int) and 0 <= number < _BEYOND


def _check_size(name: str, value: object, kind: type[list[Any]] | type[str], most: int) -> None:
    """Hold a list or a text to the size that it may have on the server's other paths."""
    if isinstance(value, kind) and len(value) > most:
        unit = "characters" if kind is str else "members"
        raise ConfigError(f"{name} has {len(value)} {unit}, but may have {most} at most: leave some out.")


def _object(value: object, name: str, names: Sequence[str]) -> Facts:
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is {shown(value)}, but must be an object.")
    _check_names(value, names)
    return dict(value)


def _check_names(given: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise ConfigError(f"There is no setting {shown(unknown)}: leave it out.")

"""Options of calls to an engine, by name beside a config or in its place, and how they are checked."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, TypedDict, TypeVar, cast

from reader_edge_runtime.acceptance import AcceptanceRule
from reader_edge_runtime.config import (
    DraftConfig,
    EngineConfig,
    GenerationConfig,
    Grammar,
    SamplingConfig,
    ServingConfig,
)
from reader_edge_runtime.drafting.draft_sources import DraftSources
from reader_edge_runtime.errors import ConfigError, ConversationError, PromptError
from reader_edge_runtime.generation_config import chosen_sampling
from reader_edge_runtime.images.decode import ImageSource
from reader_edge_runtime.text.conversation import Conversation, Encodable, Message, Tool
from reader_edge_runtime.text.image_parts import with_images
from reader_edge_runtime.text.tool_calls.declared_tool import declared_tool
from reader_edge_runtime.untrusted.config_checks import require_known
from reader_edge_runtime.untrusted.user_input import short_repr

Callback = Callable[[int, int], None]
AdapterPaths = Mapping[str, str | os.PathLike[str]]  # by the names that requests call them
NO_ADAPTERS: AdapterPaths = MappingProxyType({})
Called = TypeVar("Called", bound=Callable[..., None])
Config = TypeVar("Config", EngineConfig, DraftConfig, DraftSources, GenerationConfig, ServingConfig)

_SAMPLING = frozenset(each.name for each in fields(SamplingConfig))


class GenerationOptions(TypedDict, total=False):
    """What may be given beside a prompt, in place of a config or over it: its fields, those of its sampling, and more.

    schema: the answer is JSON of this schema: an object, its text, or a class that has one, as pydantic's models do.
    tools: functions that the answer may call, or JSON objects that describe some.
    images: paths, bytes or PIL images, which stand before the prompt's text, or where its messages have parts for them.
    """

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    schema: Any
    tools: Sequence[Callable[..., Any] | Tool] | None
    images: Sequence[ImageSource] | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float] | None
    stop_token_ids: Sequence[int] | None
    grammar: Grammar | None
    prediction: str | None
    sampling: SamplingConfig | None
    ignores_eos: bool | None
    is_drafted: bool | None
    wants_logprobs: bool | None
    num_top_logprobs: int | None
    wants_prompt_logprobs: bool | None
    splits_thinking: bool | None
    max_reasoning_tokens: int | None
    is_scored: bool | None
    acceptance: AcceptanceRule | None
    cache_salt: str | None
    adapter: str | None


class EngineOptions(TypedDict, total=False):
    """What may be given beside a model, in place of an `EngineConfig` or over it: its fields."""

    threads: int | None
    prefill_chunk: int | None
    max_batch: int | None
    max_kv_bytes: int | None
    max_image_tokens: int | None
    is_calibrated: bool | None
    is_probed: bool | None
    uses_native: bool | None
    provider: str | None
    is_near_tie_guarded: bool | None
    is_text_literal: bool | None
    is_drafted: bool | None
    prefix_cache: str | os.PathLike[str] | None
    prefix_bytes: int | None
    signature_key: str | os.PathLike[str] | None


def is_iterable(value: object) -> bool:
    """Whether it can be gone through, which not all can that say so, as an array of no dimension."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def given_callback(callback: Called | None, name: str) -> Called | None:
    """Check a progress callback that a caller gave. Raises ConfigError."""
    if callback is not None and not callable(callback):
        raise ConfigError(f"{name} is {short_repr(callback)}, but must be a function of two numbers.")
    return callback


def given_config(config: Config | None, kind: type[Config], name: str) -> Config:
    """A config as it was given, or one of defaults. Raises ConfigError."""
    if config is not None and not isinstance(config, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ConfigError(f"{name} is {short_repr(config)}, but must be {article} {kind.__name__}.")
    return kind() if config is None else config


def engine_config(config: EngineConfig | None, options: EngineOptions) -> EngineConfig:
    """A config with what was given beside it; what is None was not given. Raises ConfigError."""
    config, given = given_config(config, EngineConfig, "config"), _given_options(options, EngineOptions.__annotations__)
    return replace(config, **given) if given else config


def _given_options(options: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    require_known(given, known, "option")
    return given


def with_options(
    prompt: Encodable,
    config: GenerationConfig | None,
    options: GenerationOptions,
    own_sampling: Mapping[str, float],
    splits_thinking: bool = True,
) -> tuple[Encodable, GenerationConfig]:
    """A prompt and its config with what was given beside them; what is None was not given.

    own_sampling: what the package recommends. splits_thinking: whether thoughts are split off an answer that is to be
    JSON, or may call tools. Raises ConfigError or PromptError.
    """
    config = given_config(config, GenerationConfig, "config")
    given = _given_options(options, GenerationOptions.__annotations__)
    schema, tools, images = given.pop("schema", None), given.pop("tools", None), given.pop("images", None)
    if schema is not None and ("grammar" in given or tools):
        other = "tools" if tools else "grammar"
        raise ConfigError(f"schema and {other} cannot both say what the answer is: leave one out.")
    if schema is not None:
        given["grammar"] = Grammar.of_schema(schema)
    if schema is not None or tools:
        given.setdefault("splits_thinking", config.splits_thinking or splits_thinking)
    sampling: dict[str, Any] = {name: given.pop(name) for name in _SAMPLING & given.keys()}
    if sampling:
        whole = cast(SamplingConfig | None, given.get("sampling", config.sampling))
        given["sampling"] = replace(whole, **sampling) if whole else chosen_sampling(own_sampling, sampling)
    prompt = with_images(prompt, images) if images else prompt
    prompt = with_tools(prompt, tools) if tools else prompt
    return prompt, replace(config, **given) if given else config


def with_tools(prompt: Encodable, tools: Any) -> Conversation:
    """A prompt as a conversation with tools; a text is the user's message. Raises ConfigError or PromptError."""
    if isinstance(tools, str | Mapping) or not is_iterable(tools):
        raise ConfigError(f"tools is {short_repr(tools)}, but must be a list of functions, or of JSON objects.")
    declared = [declared_tool(tool) for tool in tools]
    if isinstance(prompt, str):
        return Conversation([{"role": "user", "content": prompt}], declared)
    if isinstance(prompt, Conversation):
        if prompt.tools:
            raise PromptError("The conversation has tools already: leave one or the other out.")
        return replace(prompt, tools=declared)
    if not isinstance(prompt, list | tuple) or (prompt and not isinstance(prompt[0], Mapping)):
        raise PromptError(f"Tools reach a model with messages, not with {short_repr(prompt)}: give a text or messages.")
    return Conversation(cast(Sequence[Message], prompt), declared)


@contextmanager
def placed_prompt(index: int | None) -> Iterator[None]:
    """Have what is wrong with a prompt tell its place among several; None where it is the only one."""
    try:
        yield
    except PromptError as error:
        if index is None:
            raise
        sentence, place = f"prompts[{index}]: {error}", f"prompts[{index}]"
        if isinstance(error, ConversationError):
            raise ConversationError(sentence, f"{place}.{error.place}") from None
        raise PromptError(sentence) from None

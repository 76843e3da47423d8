"""The options of an answer (prompt, sampling, limits), as JSON in a frame."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct

from reader_edge_runtime.acceptance import EXACT
from reader_edge_runtime.config import GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.errors import ConfigError, PromptError
from reader_edge_runtime.generation_config import MAX_BIASES, MAX_SALT_CHARACTERS, MAX_STOP_CHARACTERS, MAX_STOPS
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.conversation_check import checked_conversation
from reader_edge_runtime.text.image_parts import with_neutral_parts, with_own_parts
from reader_edge_runtime.untrusted.untrusted_json import converted, decoded

_ABSENT = ("wants_logprobs", "wants_prompt_logprobs", "splits_thinking")  # they take more than tokens back
_NAME, _REMEDY = "The request", "correct it, or leave it out"


class _Grammar(Struct, forbid_unknown_fields=True):
    kind: str
    text: str
    name: str = ""


class _Sampling(Struct, forbid_unknown_fields=True):
    """logit_bias: token ids with what is added to their logits."""

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Annotated[list[tuple[int, float]], Meta(max_length=MAX_BIASES)] = []
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


class _Conversation(Struct, forbid_unknown_fields=True):
    messages: list[Any] = []
    template_args: dict[str, Any] = {}
    continues_final_message: bool = False


class Settings(Struct, forbid_unknown_fields=True):
    """The options that a remote server takes; sampling: None as its model recommends."""

    max_tokens: int = 512
    stop: Annotated[list[Annotated[str, Meta(max_length=MAX_STOP_CHARACTERS)]], Meta(max_length=MAX_STOPS)] = []
    stop_token_ids: Annotated[list[int], Meta(max_length=MAX_BIASES)] = []
    prediction: str = ""
    ignores_eos: bool = False
    is_drafted: bool = True
    is_scored: bool = False
    max_reasoning_tokens: int | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_SALT_CHARACTERS)] = ""
    adapter: Annotated[str, Meta(max_length=100)] | None = None
    sampling: _Sampling | None = None
    grammar: _Grammar | None = None
    conversation: _Conversation | None = None

    @classmethod
    def of(cls, config: GenerationConfig, chat: Conversation | None = None) -> "Settings":
        """chat: that the server puts into its template; None where token ids are sent.

        Raises ConfigError for what a remote server does not take, PromptError for tools, whose calls are parts of
        a text that only the server's template knows, and for what no template can be given.
        """
        for name in _ABSENT:
            if getattr(config, name):
                raise ConfigError(f"{name} is not given by a remote server: leave it out.")
        if config.acceptance is not EXACT:
            raise ConfigError(f"The acceptance rule {config.acceptance.name!r} is not given by a server: leave it out.")
        if chat is not None:
            if chat.tools:
                raise PromptError(
                    "Tools cannot be declared over a link: ask the server's '/v1/chat/completions' for calls."
                )
            chat = checked_conversation(with_neutral_parts(chat))
            chat = replace(chat, messages=with_own_parts(chat, as_json=True))
        values = _values(config, cls) | {"conversation": chat and _values(chat, _Conversation)}
        if (sampling := config.sampling) is not None:
            values["sampling"] = _values(sampling, _Sampling) | {"logit_bias": list(sampling.logit_bias.items())}
        values["grammar"] = config.grammar and _values(config.grammar, _Grammar)
        return converted(values, cls, _NAME, ConfigError, _REMEDY)

    @classmethod
    def decoded(cls, data: bytes) -> "Settings":
        """Raises ConfigError."""
        return converted(decoded(data, _NAME, ConfigError, _REMEDY), cls, _NAME, ConfigError, _REMEDY)

    def encoded(self) -> bytes:
        """Raises ConfigError for what is not JSON."""
        try:
            return msgspec.json.encode(self)
        except (TypeError, ValueError, RecursionError) as error:  # halves of characters too
            raise ConfigError(f"{_NAME} cannot be sent ({error}): {_REMEDY}.") from None

    def config(self) -> GenerationConfig:
        """The config that `of` was given. Raises ConfigError."""
        values = {name: getattr(self, name) for name in _names(Settings) if name != "conversation"}
        if self.sampling is not None:
            sampling = msgspec.structs.asdict(self.sampling)
            values["sampling"] = SamplingConfig(**sampling | {"logit_bias": dict(self.sampling.logit_bias)})
        if self.grammar is not None:
            values["grammar"] = Grammar(**msgspec.structs.asdict(self.grammar))
        return GenerationConfig(**values)

    def chat(self) -> Conversation | None:
        """Whether its messages are some is found out by the chat template."""
        return None if self.conversation is None else Conversation(**msgspec.structs.asdict(self.conversation))


def hash_of(token_ids: Sequence[int]) -> bytes:
    """SHA-256 of an answer's tokens."""
    return hashlib.sha256(np.array(token_ids, "<u4").tobytes()).digest()


def _names(kind: type[Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind)]


def _values(source: object, kind: type[Struct]) -> dict[str, Any]:
    """What an object has of the fields of a class."""
    return {name: getattr(source, name) for name in _names(kind) if hasattr(source, name)}

"""Options of one answer: its length and end, how its tokens are chosen, its grammar."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from reader_edge_runtime.acceptance import EXACT, AcceptanceRule
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.untrusted.config_checks import Range, check, number, refusing_unknown, require
from reader_edge_runtime.untrusted.user_input import short_repr

_TOKEN_IDS = Range(0, 2**31 - 1)
LOGIT_BIASES = Range(-10_000, 10_000)
MAX_STOPS, MAX_STOP_CHARACTERS, MAX_BIASES = 16, 1000, 1024  # of what a server is sent, stop tokens as biases
MAX_SALT_CHARACTERS = 1024  # likewise
_GRAMMARS = ("json_schema", "regex", "choice", "lark", "tool_calls")
MAX_GRAMMAR = 1 << 16  # characters
OWN_SAMPLING = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")  # what a package may recommend
_SEED_BITS = 32  # of one drawn here: short enough to be typed


@refusing_unknown({})
@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How a token is chosen from the target's logits. Applied in the order of the fields.

    repetition_penalty: divides positive and multiplies negative logits of tokens seen before, prompt included
        (CTRL, arXiv 1909.05858, section 4.1); 1 is off.
    frequency_penalty: subtracted from a token's logit for each time that the answer has it; 0 is off. As OpenAI's, it
        does not count the prompt.
    presence_penalty: subtracted once from the logit of every token that the answer has; 0 is off. Likewise.
    logit_bias: token id -> value added to its logit.
    temperature: 0 takes the most likely token (the lowest id of equals).
    top_k: keep the k most likely tokens; 0 is off.
    top_p: keep the smallest set of most likely tokens whose probability reaches p; 1 is off,
        0 keeps the most likely alone.
    min_p: drop tokens less likely than min_p times the most likely one; 0 is off.
    seed: one random number is drawn per (seed, position).
    """

    repetition_penalty: Annotated[float, Range(0.01, 100)] = 1.0
    frequency_penalty: Annotated[float, Range(-2, 2)] = 0.0
    presence_penalty: Annotated[float, Range(-2, 2)] = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    temperature: Annotated[float, Range(0, 100)] = 0.0
    top_k: Annotated[int, Range(0)] = 0
    top_p: Annotated[float, Range(0, 1)] = 1.0
    min_p: Annotated[float, Range(0, 1)] = 0.0
    seed: Annotated[int, Range(0, 2**64 - 1, "from 0 to 2**64 - 1")] = 0

    def __post_init__(self) -> None:
        check(self)
        bias = self.logit_bias
        require(isinstance(bias, Mapping), "logit_bias", bias, "a mapping of token ids to numbers")
        ids = [number("logit_bias token id", token_id, int, _TOKEN_IDS) for token_id in bias]
        values = [number(f"logit_bias of token {token_id}", bias[token_id], float, LOGIT_BIASES) for token_id in bias]
        object.__setattr__(self, "logit_bias", dict(zip(ids, values, strict=True)))

    def __str__(self) -> str:
        """In few words, as "temperature 0.6, top-k 20, seed 7": what is not as in greedy decoding."""
        words = [] if self.temperature else ["greedy"]
        for each in fields(self):
            value, name = getattr(self, each.name), each.name.replace("_", "-")
            if each.name == "logit_bias":
                words += [f"{len(value)} biases"] if value else []
            elif (each.name == "seed" or value != each.default) and (self.temperature or "penalty" in name):
                words.append(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}")
        return ", ".join(words)


def chosen_sampling(own: Mapping[str, float], given: Mapping[str, Any]) -> SamplingConfig:
    """What is given, beside it what the package recommends (`Manifest.sampling`), else greedy; by the fields' names.

    Where tokens are drawn and no seed is given, one is drawn too: by which the answer can be repeated.
    Raises ConfigError.
    """
    chosen = SamplingConfig(**{**own, **given})
    if chosen.temperature and "seed" not in given:
        return replace(chosen, seed=secrets.randbits(_SEED_BITS))
    return chosen


def is_own_sampling(values: object) -> bool:
    """Whether these are numbers that a package may recommend, by their names; they come from outside."""
    if not isinstance(values, dict) or not values.keys() <= set(OWN_SAMPLING):
        return False
    try:
        SamplingConfig(**values)
    except ConfigError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Grammar:
    """The form that an answer must have. Needs the extra "grammar".

    A process that is bounded in time and memory follows it, so it may come from a stranger.

    kind: the language of `text`: "json_schema" (an object), "regex" (Rust's syntax), "choice" (a JSON list of texts,
        one of which is the answer), "lark" (llguidance's form of Lark), or "tool_calls" (Lark whose JSON is held as
        that of a schema; texts around it that are not fixed may have tabs).
    text: the grammar itself.
    name: its name in error messages; by default its kind.
    model: the class that reads an answer to its schema, as pydantic's models do (`model_validate_json`); None for none.
    left_out: the parts of a lenient schema that the text does not hold already.
    """

    kind: str
    text: str
    name: str = ""
    model: Any = field(default=None, compare=False)
    left_out: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of_schema(cls, schema: Any) -> "Grammar":
        """The JSON of a schema: an object, its text, or a class that has one, as pydantic's models do. ConfigError."""
        make = getattr(schema, "model_json_schema", None)
        model, given = (schema, make()) if isinstance(schema, type) and callable(make) else (None, schema)
        try:
            given = json.loads(given) if isinstance(given, str) else given
            if isinstance(given, Mapping):
                return cls("json_schema", json.dumps(dict(given)), model=model)
        except (TypeError, ValueError, RecursionError) as error:
            reason = f"which is no JSON schema ({error}): correct it"
            raise ConfigError(f"schema is {short_repr(schema)}, {reason}.") from None
        words = "a JSON schema, as an object or a text, or a class that has one, as pydantic's models do"
        raise ConfigError(f"schema is {short_repr(schema)}, but must be {words}.")

    def __post_init__(self) -> None:
        is_known = isinstance(self.kind, str) and self.kind in _GRAMMARS
        require(is_known, "kind", self.kind, f"one of {', '.join(_GRAMMARS)}")
        require(isinstance(self.text, str), "text", self.text, "a text")
        if len(self.text) > MAX_GRAMMAR:
            size = f"{len(self.text)} characters, but may have {MAX_GRAMMAR} at most"
            raise ConfigError(f"The grammar has {size}: shorten it, or the schemas and tools that it is made of.")
        require(isinstance(self.name, str), "name", self.name, "a text")
        if not self.name:
            object.__setattr__(self, "name", f"grammar of kind {self.kind!r}")
        if self.kind == "choice":
            require(_is_choice(self.text), "text", self.text[:80], "a JSON list of texts that are not empty")


@refusing_unknown({"sampling": SamplingConfig})
@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """What one request asks for.

    max_tokens: most new tokens; the context limit may end the answer earlier.
    sampling: how tokens are chosen; None: as the package recommends, with a seed drawn for each answer, or greedily
        where it recommends nothing (`Engine.sampling`).
    stop: strings that end the answer; the text ends before the first of them. They may name special tokens, which are
        not in the text: "<|im_end|>" ends it at that token.
    stop_token_ids: token ids that end the answer besides the model's own end tokens; the text ends before them.
    grammar: the form that the answer must have; None for any.
    prediction: a text that the answer may repeat, in whole or in part, to draft from.
    ignores_eos: continue past the model's end tokens (for measuring).
    is_drafted: False decodes plainly: every draft tree has one node.
    wants_logprobs: return the log-probability of each token, at temperature 1.
    num_top_logprobs: return those of so many most likely tokens too.
    wants_prompt_logprobs: return the same of the prompt's tokens. The whole prompt is scored, cached parts too.
    splits_thinking: return what the model thinks apart from the text, where its chat template has a form for it. A
        grammar then applies behind a thinking part that the prompt has opened.
    max_reasoning_tokens: most tokens that the model thinks, where its chat template has a form for that; then the end
        of the thought is put in its place. With 0, a template that has a switch begins none. None: any number.
    is_scored: add up the log-probabilities of the answer's tokens, at temperature 1.
    acceptance: the rule that decides which drafted tokens are emitted. A rule that is not exact may change the answer.
    cache_salt: what keeps users of one engine apart: a request neither finds the texts of other salts in the KV cache,
        nor is drafted from what was answered under them, so that no time and no count tells of them.
    adapter: the name of the adapter that answers, of those that the engine has; None: the model alone.
    """

    max_tokens: Annotated[int, Range(1)] = 512
    sampling: SamplingConfig | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    grammar: Grammar | None = None
    prediction: str = ""
    ignores_eos: bool = False
    is_drafted: bool = True
    wants_logprobs: bool = False
    num_top_logprobs: Annotated[int, Range(0, 1000)] = 0
    wants_prompt_logprobs: bool = False
    splits_thinking: bool = False
    max_reasoning_tokens: int | None = None
    is_scored: bool = False
    acceptance: AcceptanceRule = EXACT
    cache_salt: str = ""
    adapter: str | None = None

    def __post_init__(self) -> None:
        check(self)
        require(isinstance(self.sampling, SamplingConfig | None), "sampling", self.sampling, "a SamplingConfig")
        require(isinstance(self.grammar, Grammar | None), "grammar", self.grammar, "a Grammar")
        require(isinstance(self.prediction, str), "prediction", self.prediction, "a text")
        require(isinstance(self.cache_salt, str), "cache_salt", self.cache_salt, "a text")
        require(isinstance(self.adapter, str | None), "adapter", self.adapter, "an adapter's name")
        require(isinstance(self.acceptance, AcceptanceRule), "acceptance", self.acceptance, "an AcceptanceRule")
        if self.max_reasoning_tokens is not None:
            most = number("max_reasoning_tokens", self.max_reasoning_tokens, int, Range(0))
            object.__setattr__(self, "max_reasoning_tokens", most)
        stop, ids = (self.stop,) if isinstance(self.stop, str) else self.stop, self.stop_token_ids
        is_list = isinstance(stop, Sequence) and not isinstance(stop, str | bytes)
        is_text = is_list and all(isinstance(text, str) and text for text in stop)
        require(is_text, "stop", stop, "texts that are not empty")
        is_ids = isinstance(ids, Sequence) and not isinstance(ids, str | bytes | bytearray | memoryview)
        require(is_ids, "stop_token_ids", ids, "a tuple of token ids")
        numbers = tuple(number("stop_token_ids", token_id, int, _TOKEN_IDS) for token_id in ids)
        object.__setattr__(self, "stop", tuple(stop))
        object.__setattr__(self, "stop_token_ids", numbers)


def _is_choice(text: str) -> bool:
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(choices, list) and bool(choices) and all(isinstance(each, str) and each for each in choices)

"""What the bodies of all of OpenAI's endpoints have in common: how tokens are chosen, and in what format they come."""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from reader_edge.server.api_error import ApiError, agreed
from reader_edge.server.completion import CompletionRequest, check_model, seed_headers, with_next_seed
from reader_edge.server.openai.messages import Content, text_of
from reader_edge.server.schema import UNSUPPORTED, JsonObject, bounds, only, within
from reader_edge.server.settings import ServerSettings
from reader_edge.server.structured_outputs import (
    Choices,
    JsonSchema,
    RequestedFormat,
    StructuredOutputs,
    formats_of_outputs,
    grammar_of,
)
from reader_edge.server.tool_grammar import tool_grammar
from reader_edge_runtime import GenerationConfig, SamplingConfig
from reader_edge_runtime.generation_config import (
    LOGIT_BIASES,
    MAX_BIASES,
    MAX_SALT_CHARACTERS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    chosen_sampling,
)
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse
from reader_edge_runtime.untrusted.user_input import WITHHELD, short_repr

_TOKEN_ID = re.compile("[0-9]{1,10}")
_SAMPLING = {"temperature": 1.0}  # of a request that names none, to a model that recommends nothing
_MAX_CHOICES = 1024  # of any server; the settings of each allow fewer

_Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
_STOPS = f"a text or a list of at most {MAX_STOPS} texts, each of 1 to {MAX_STOP_CHARACTERS} characters"
Stop = Annotated[_Stop | Annotated[tuple[_Stop, ...], Meta(max_length=MAX_STOPS)], Meta(description=_STOPS)]
Bias = Annotated[
    dict[str, Annotated[float, bounds(LOGIT_BIASES)]],
    Meta(
        max_length=MAX_BIASES,
        description=f"an object of at most {MAX_BIASES} token ids, each with a number {LOGIT_BIASES}",
    ),
]
# Clients that do not know the server's limit ask for more, or for -1: the limit is used, and a header names it.
MaxTokens = Annotated[
    int,
    Meta(
        ge=-1,
        description="a whole number of 1 or more, or -1 for as many as there may be",
        extra_json_schema={"not": {"const": 0}},
    ),
]
# Two of llama.cpp's, vLLM's, and that of Qwen's own service.
_BUDGETS = "thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget", "thinking_budget"
Budget = Annotated[int, Meta(ge=-1, description="a whole number of 0 or more, or -1 for as many as there may be")]


class Prediction(JsonObject, tag_field="type", tag="content"):
    """The caller's guess of the answer, which is drafted from."""

    content: Content


class StreamOptions(JsonObject, ignored="include_obfuscation"):
    """include_sources: whether a stream tells what drafted its text. continuous_usage_stats: usage in every event."""

    include_usage: bool = False
    include_sources: bool = False
    continuous_usage_stats: bool = False


_IGNORED = """
    client_metadata conversation_id draft_model guided_decoding_backend id_slot kv_transfer_params litellm_session_id
    litellm_trace_id models num_draft_tokens prompt_cache_key prompt_cache_options prompt_cache_retention provider
    request_id route safety_identifier service_tier session_id tags trace ttl user verbosity
"""
_IGNORED_CHOICES = """
    cache_prompt chat_id keep_alive metadata mirostat_eta mirostat_tau num_batch num_ctx num_gpu
    num_keep num_thread return_progress store timings_per_token usage use_mlock use_mmap
"""
# What vLLM, SGLang, llama.cpp, Ollama and text-generation-webui know, and would answer otherwise for.
_REFUSED = """
    add_special_tokens allowed_token_ids bad_words chat_template custom_logit_processor documents dry_multiplier
    dynatemp_range ebnf epsilon_cutoff eta_cutoff extra_body format grammar guidance_scale guided_whitespace_pattern
    json_schema logits_processors lora lora_path negative_prompt no_stop_trim n_predict options penalty_alpha plugins
    prompt_embeds prompt_logprobs reasoning_format regex repeat_last_n samplers smoothing_factor structural_tag think
    thinking top_a top_n_sigma transforms truncate_prompt_tokens xtc_probability
"""


class GenerationBody(JsonObject, ignored=_IGNORED, refused=_REFUSED):
    """The fields that chats, completions and responses share. repeat_penalty: repetition_penalty, as llama.cpp and
    Open WebUI call it."""

    read_once: ClassVar[tuple[str, ...]] = (
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "prediction",
        "structured_outputs",
    )

    model: Annotated[str, Meta(description="the name of a model")] = ""
    stream: bool = False
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31)] = 0

    temperature: Annotated[float, within(SamplingConfig, "temperature")] | None = None
    top_p: Annotated[float, within(SamplingConfig, "top_p")] | None = None
    top_k: Annotated[int, Meta(ge=-1, description="a whole number of 0 or more, or -1 for all tokens")] | None = None
    min_p: Annotated[float, within(SamplingConfig, "min_p")] | None = None
    repetition_penalty: Annotated[float, within(SamplingConfig, "repetition_penalty")] | None = None
    repeat_penalty: Annotated[float, within(SamplingConfig, "repetition_penalty")] | None = None
    frequency_penalty: Annotated[float, within(SamplingConfig, "frequency_penalty")] = 0.0
    presence_penalty: Annotated[float, within(SamplingConfig, "presence_penalty")] = 0.0
    seed: Annotated[int, Meta(description="a whole number; -1 for a new one each time")] = -1
    logit_bias: Bias | None = None
    stop: Stop = ()
    stop_token_ids: Annotated[tuple[int, ...], Meta(max_length=MAX_BIASES, description="a list of token ids")] = ()
    ignore_eos: bool = False
    cache_salt: Annotated[str, Meta(max_length=MAX_SALT_CHARACTERS)] = ""
    draft: Annotated[bool, Meta(description="false to decode this answer plainly")] = True

    thinking_budget_tokens: Budget | None = None
    reasoning_budget_tokens: Budget | None = None
    thinking_token_budget: Budget | None = None
    thinking_budget: Budget | None = None

    prediction: Prediction | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None

    def thought_fields(self) -> list[str]:
        return [name for name in _BUDGETS if getattr(self, name) is not None]

    @property
    def num_choices(self) -> int:
        """To each prompt."""
        return 1

    def tool_use(self) -> ToolUse:
        """The tools that the answer may call. Raises ApiError."""
        return ToolUse()

    @abstractmethod
    def prompts(self, use: ToolUse) -> Sequence[Encodable]:
        """The prompts to answer, each as often as choices are wanted. Raises ApiError."""

    @abstractmethod
    def answer_format(self) -> RequestedFormat:
        """What format the answers are to have. Raises ApiError and ConfigError."""

    @abstractmethod
    def requested_tokens(self) -> tuple[str, int | None]:
        """The field that names how many tokens an answer may have, and what it says; None where it says nothing."""

    def requested_logprobs(self) -> tuple[bool, int]:
        """Whether log-probabilities are wanted, and of how many likely tokens besides. Raises ApiError."""
        return False, 0

    def completion_request(
        self, settings: ServerSettings, call_syntax: CallSyntax, own_sampling: Mapping[str, float]
    ) -> CompletionRequest:
        """The request to the engine. call_syntax: in which the model writes calls. own_sampling: of `Engine.sampling`.

        Raises ApiError and ConfigError.
        """
        check_model(self.model, settings)
        use = self.tool_use()
        prompts, num_choices = self.prompts(use), self.num_choices
        if num_choices * len(prompts) > settings.max_choices:
            excess = f"'n' and prompts ask for {num_choices * len(prompts)} answers together"
            raise ApiError(400, f"{excess}: 1 to {settings.max_choices} are given here.", "n")
        max_tokens, headers = settings.allowed_tokens(*self.requested_tokens())
        answer_format = self.answer_format()
        config = replace(
            self.config(max_tokens, own_sampling), grammar=tool_grammar(use, call_syntax, answer_format.grammar)
        )
        return CompletionRequest(
            prompts=[prompt for prompt in prompts for _ in range(num_choices)],
            configs=[with_next_seed(config, number) for number in range(num_choices)] * len(prompts),
            num_choices=num_choices,
            use=use,
            answer_format=answer_format,
            is_streamed=self.stream,
            priority=self.priority,
            names_temperature=self.temperature is not None,
            headers=headers | seed_headers(config),
        )

    def guided_formats(self) -> list[RequestedFormat]:
        """The formats that vLLM's fields ask for. Raises ApiError and ConfigError."""
        formats = formats_of_outputs(self.structured_outputs, "structured_outputs") if self.structured_outputs else []
        for part in ("json", "regex", "choice", "grammar"):
            value = getattr(self, f"guided_{part}")
            if value is not None:
                formats.append(RequestedFormat(grammar_of(part, value, f"guided_{part}"), f"guided_{part}"))
        return formats

    def config(self, max_tokens: int, own_sampling: Mapping[str, float] = MappingProxyType({})) -> GenerationConfig:
        """How each answer is to be made, without its format. Raises ApiError and ConfigError."""
        wants_logprobs, num_top_logprobs = self.requested_logprobs()
        budget = self._reasoning_budget()
        return GenerationConfig(
            max_tokens=max_tokens,
            sampling=chosen_sampling(_SAMPLING | dict(own_sampling), self._sampling()),
            stop=(self.stop,) if isinstance(self.stop, str) else self.stop,
            stop_token_ids=self.stop_token_ids,
            prediction=text_of(self.prediction.content) if self.prediction else "",
            ignores_eos=self.ignore_eos,
            cache_salt=self.cache_salt,
            is_drafted=self.draft,
            wants_logprobs=wants_logprobs,
            num_top_logprobs=num_top_logprobs,
            splits_thinking=True,
            max_reasoning_tokens=max_tokens if budget == -1 else budget,
        )

    def _reasoning_budget(self) -> int | None:
        """Most tokens of thoughts; -1 for any number, None where no field says it. Raises ApiError."""
        given = [(name, value) for name in _BUDGETS if (value := getattr(self, name)) is not None]
        for name, value in given[1:]:
            agreed(*given[0], name, value)
        return given[0][1] if given else None

    def _sampling(self) -> dict[str, Any]:
        """What the body says of SamplingConfig. Raises ApiError."""
        names = "repetition_penalty", "repeat_penalty"
        given = {
            "repetition_penalty": agreed(names[0], self.repetition_penalty, names[1], self.repeat_penalty),
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "logit_bias": self._biases(),
            "temperature": self.temperature,
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": None if self.seed == -1 else self.seed % 2**64,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _biases(self) -> dict[int, float]:
        biases = {}
        for token, value in (self.logit_bias or {}).items():
            if not _TOKEN_ID.fullmatch(token):
                rest = "but must name tokens by their ids, as {'42': -100} does."
                public = f"'logit_bias' names {WITHHELD}, {rest}"
                raise ApiError(400, f"'logit_bias' names {short_repr(token)}, {rest}", "logit_bias", public=public)
            biases[int(token)] = value
        return biases


class ChoicesBody(GenerationBody, ignored=_IGNORED_CHOICES):
    """The fields that chats and completions share, which answer in choices."""

    n: Annotated[int, Meta(ge=1, le=_MAX_CHOICES)] = 1
    best_of: Annotated[int, Meta(ge=1, le=_MAX_CHOICES)] | None = None
    max_tokens: MaxTokens | None = None
    stream_options: StreamOptions = StreamOptions()

    early_stopping: Annotated[bool, only(False)] = False
    include_stop_str_in_output: Annotated[bool, only(False)] = False
    length_penalty: Annotated[float, Meta(ge=1, le=1), UNSUPPORTED] = 1.0
    min_tokens: Annotated[Literal[0], UNSUPPORTED] = 0
    mirostat: Annotated[Literal[0], UNSUPPORTED] = 0
    return_token_ids: Annotated[bool, only(False)] = False
    skip_special_tokens: Annotated[bool, only(True)] = True
    spaces_between_special_tokens: Annotated[bool, only(True)] = True
    tfs_z: Annotated[float, Meta(ge=1, le=1), UNSUPPORTED] = 1.0
    typical_p: Annotated[float, Meta(ge=1, le=1), UNSUPPORTED] = 1.0
    use_beam_search: Annotated[bool, only(False)] = False

    @property
    def num_choices(self) -> int:
        """Those to decode: of more than are wanted, the best are returned."""
        if self.best_of in (None, 1, self.n):
            return self.n
        best_of = self.best_of or self.n
        reason = "answers are streamed" if self.stream else f"'n' is {self.n}" if best_of < self.n else ""
        if reason:
            raise ApiError(400, f"'best_of' is {best_of}, but {reason}: leave it out.", "best_of")
        return best_of

    def config(self, max_tokens: int, own_sampling: Mapping[str, float] = MappingProxyType({})) -> GenerationConfig:
        config = GenerationBody.config(self, max_tokens, own_sampling)
        return replace(config, is_scored=self.num_choices > self.n)

"""The request bodies of Ollama's `/api/chat` and `/api/generate`, translated to those of OpenAI."""

import math
import re
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from reader_edge.server.api_error import ApiError, agreed, wrong_value
from reader_edge.server.openai.generation_body import Stop
from reader_edge.server.openai.messages import MAX_CALLS, MAX_ITEMS, call_message, image_part
from reader_edge.server.schema import UNSUPPORTED, JsonObject, within
from reader_edge.server.structured_outputs import RequestedFormat, schema_format
from reader_edge.server.tools import MaxTools, Tool, tool_use_of
from reader_edge_runtime import Conversation, GenerationConfig, Message, SamplingConfig
from reader_edge_runtime.generation_config import chosen_sampling
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.image_parts import MAX_IMAGES, bytes_of_base64
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse

_MAX_TOP_LOGPROBS = 20
_SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}  # of a model that recommends nothing
_JSON_SCHEMA = {"type": "object"}
_FORMAT = Meta(description="'json' or a JSON schema, an object")
_MESSAGES = Meta(max_length=MAX_ITEMS, description=f"a list of messages, at most {MAX_ITEMS}")
_KEEP_ALIVE = Meta(description="a number of seconds, or a text like '5m', '1h30m' or '-1'")
KeepAlive = Annotated[float | str, _KEEP_ALIVE] | None
_DURATION = re.compile(r"-?(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+")
_PART = re.compile(r"([\d.]+)([a-zµ]+)")
_MAX_DURATION, _MAX_KEEP_S = 40, 10.0**9  # characters; seconds beyond which nothing ends
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_THINK = Meta(description="true, false, 'low', 'medium' or 'high'")

Images = Annotated[
    tuple[str, ...], Meta(max_length=MAX_IMAGES, description=f"a list of images in base64, at most {MAX_IMAGES}")
]


# How Ollama loads a model, what belongs to `mirostat`, and a penalty of Open WebUI that Ollama does not know either.
_IGNORED_OPTIONS = """
    embedding_only f16_kv logits_all low_vram main_gpu new_topic_penalty mirostat_eta mirostat_tau num_batch
    draft_num_predict num_ctx num_gpu num_gqa num_keep num_thread numa penalize_newline use_mlock use_mmap vocab_only
"""


class Options(JsonObject, ignored=_IGNORED_OPTIONS, refused="grammar logit_bias"):
    """How tokens are chosen: by default as the model recommends, else as Ollama does without the penalty of repetition.

    num_predict: 0 and less for as many tokens as there may be. repeat_last_n: 0 is no penalty; otherwise penalties
    look at the whole text. repeat_penalty: 0 is none, as Open WebUI asks for none.
    """

    num_predict: Annotated[int, Meta(ge=-2)] = -1
    temperature: Annotated[float, within(SamplingConfig, "temperature")] | None = None
    top_k: Annotated[int, Meta(ge=-1, description="a whole number of 0 or more, or -1 for all tokens")] | None = None
    top_p: Annotated[float, within(SamplingConfig, "top_p")] | None = None
    min_p: Annotated[float, within(SamplingConfig, "min_p")] | None = None
    repeat_penalty: Annotated[float, Meta(ge=0.0)] | None = None
    presence_penalty: Annotated[float, within(SamplingConfig, "presence_penalty")] = 0.0
    frequency_penalty: Annotated[float, within(SamplingConfig, "frequency_penalty")] = 0.0
    repeat_last_n: Annotated[int, Meta(ge=-1)] = 64
    seed: Annotated[int, Meta(description="a whole number; -1 for a new one each time")] = -1
    stop: Stop = ()
    reasoning_effort: str | None = None  # Open WebUI's, for the chat template
    draft: Annotated[bool, Meta(description="false to decode this answer plainly")] = True

    mirostat: Annotated[Literal[0], UNSUPPORTED] = 0
    tfs_z: Annotated[Literal[1], UNSUPPORTED] = 1
    typical_p: Annotated[Literal[1], UNSUPPORTED] = 1

    def sampling(self, own: Mapping[str, float]) -> SamplingConfig:
        """own: of `Engine.sampling`. Raises ConfigError."""
        penalty = None if self.repeat_penalty is None else self.repeat_penalty or 1.0
        requested = {
            "temperature": self.temperature,
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": None if self.seed == -1 else self.seed % 2**64,
            "repetition_penalty": penalty if self.repeat_last_n else 1.0,
            "presence_penalty": self.presence_penalty if self.repeat_last_n else 0.0,
            "frequency_penalty": self.frequency_penalty if self.repeat_last_n else 0.0,
        }
        given = {name: value for name, value in requested.items() if value is not None}
        return chosen_sampling(_SAMPLING | dict(own), given)


def keep_alive_s(value: object) -> float | None:
    """How many seconds `keep_alive` asks for: infinite for what is below 0; None where it says nothing.

    Raises ApiError.
    """
    if value is None:
        return None
    if isinstance(value, str) and len(value) <= _MAX_DURATION and _DURATION.fullmatch(value):
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(value))
        seconds = math.inf if value.startswith("-") else seconds
    else:
        try:
            seconds = float(value) if isinstance(value, int | float | str) else math.nan
        except (ValueError, OverflowError):
            seconds = math.nan
    if math.isnan(seconds):
        raise wrong_value("keep_alive", value, str(_KEEP_ALIVE.description), "keep_alive")
    return seconds if 0 <= seconds <= _MAX_KEEP_S else math.inf


class OllamaBody(JsonObject, ignored="shift truncate"):
    """The fields that chats and completions share. A stream is the rule. keep_alive: how long the model stays loaded,
    in seconds or as Go writes durations; below 0 until the end."""

    model: Annotated[str, Meta(description="the name of a model")] = ""
    stream: bool = True
    options: Options = Options()
    format: Annotated[Literal["", "json"] | dict[str, Any], _FORMAT] = ""
    think: Annotated[bool | Literal["low", "medium", "high"], _THINK] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=_MAX_TOP_LOGPROBS)] = 0
    keep_alive: KeepAlive = None

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether nothing is requested but that the model be loaded."""

    @property
    def thinks(self) -> bool:
        """Whether thinking is distinguished from the answer."""
        return True

    def tool_use(self) -> ToolUse:
        """The tools that the answer may call. Raises ApiError."""
        return ToolUse()

    @abstractmethod
    def prompt_of(self, use: ToolUse, has_template: bool) -> Encodable:
        """What is answered. Raises ApiError."""

    def answer_format(self) -> RequestedFormat:
        """What format the answer is to have. Raises ApiError and ConfigError."""
        if isinstance(self.format, str):
            return schema_format(_JSON_SCHEMA, True, "format") if self.format else RequestedFormat()
        return schema_format(self.format, False, "format")

    def config(self, max_tokens: int, own_sampling: Mapping[str, float]) -> GenerationConfig:
        """How the answer is to be made, without its format. own_sampling: of `Engine.sampling`. Raises ConfigError."""
        stop = self.options.stop
        return GenerationConfig(
            max_tokens=max_tokens,
            sampling=self.options.sampling(own_sampling),
            stop=(stop,) if isinstance(stop, str) else stop,
            wants_logprobs=self.logprobs or self.top_logprobs > 0,
            num_top_logprobs=self.top_logprobs,
            splits_thinking=self.thinks,
            is_drafted=self.options.draft,
        )

    def template_args(self) -> dict[str, Any]:
        """What the chat template gets of thinking."""
        effort = self.think if isinstance(self.think, str) else None
        requested = agreed("think", effort, "options.reasoning_effort", self.options.reasoning_effort)
        args: dict[str, Any] = {} if requested is None else {"reasoning_effort": requested}
        return args if self.think is None else {"enable_thinking": bool(self.think)} | args


class OllamaFunction(JsonObject, ignored="index description"):
    """A function that was called."""

    name: str
    arguments: Annotated[dict[str, Any] | str, Meta(description="an object, or a text of JSON")] = field(
        default_factory=dict
    )


class OllamaCall(JsonObject, ignored="index"):  # Open WebUI's place for it
    """A call that the model made."""

    function: OllamaFunction
    id: str | None = None
    type: Annotated[Literal["function"], UNSUPPORTED] = "function"


class OllamaMessage(JsonObject):
    """thinking: what the model thought before it answered. tool_name: which tool answers, of a tool's message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    tool_calls: Annotated[tuple[OllamaCall, ...], MAX_CALLS] = ()
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = None
    images: Images = ()


class OllamaChatBody(OllamaBody, ignored="system", refused="prompt suffix"):  # Open WebUI's, beside a system message
    """What `/api/chat` takes."""

    read_once = ("messages", "tools", "format")

    messages: Annotated[tuple[OllamaMessage, ...], _MESSAGES] = ()
    tools: Annotated[tuple[Tool, ...], MaxTools] = ()

    @property
    def is_empty(self) -> bool:
        return not self.messages

    def tool_use(self) -> ToolUse:
        return tool_use_of(self.tools)

    def prompt_of(self, use: ToolUse, has_template: bool) -> Encodable:
        last = self.messages[-1]
        continues = last.role == "assistant" and bool(last.content) and not last.tool_calls  # as Ollama's templates do
        return Conversation(to_messages(self.messages), use.tools, self.template_args(), continues)


class GenerateBody(OllamaBody, refused="height messages steps tools width"):
    """What `/api/generate` takes. raw: the prompt is taken as it is, without the model's chat template. suffix: the
    answer is filled in between the prompt and this."""

    read_once = ("prompt", "system", "suffix", "images", "format")

    prompt: str = ""
    system: str = ""
    raw: bool = False
    suffix: Annotated[str, Meta(description="the text behind what is filled in")] = ""
    template: Annotated[Literal[""], UNSUPPORTED] = ""
    context: Annotated[tuple[Any, ...], Meta(max_length=0), UNSUPPORTED] = ()
    images: Images = ()

    @property
    def is_empty(self) -> bool:
        return not self.prompt and not self.suffix

    @property
    def thinks(self) -> bool:
        return not self.raw

    def prompt_of(self, use: ToolUse, has_template: bool) -> Encodable:
        if self.raw and self.system:
            raise ApiError(400, "'system' has no place in a 'raw' prompt: write it into the prompt.", "system")
        if self.suffix and self.system:
            raise ApiError(400, "'system' has no place beside 'suffix': leave it out.", "system")
        if self.images and (self.raw or self.suffix or not has_template):
            raise ApiError(400, "'images' reach a model through its chat template alone: leave them out.", "images")
        if self.raw or self.suffix:
            return self.prompt
        if not has_template:
            return f"{self.system}\n\n{self.prompt}" if self.system else self.prompt
        system = [{"role": "system", "content": self.system}] if self.system else []
        content = _content(self.prompt, self.images, "images")
        return Conversation([*system, {"role": "user", "content": content}], (), self.template_args())


def _content(text: str, images: Sequence[str], place: str) -> str | list[dict[str, Any]]:
    """A text behind its images, as Ollama's templates have them. Raises ApiError."""
    parts = [image_part(bytes_of_base64(image, f"{place}[{number}]")) for number, image in enumerate(images)]
    return [*parts, {"type": "text", "text": text}] if parts else text


def to_messages(given: Sequence[OllamaMessage]) -> list[Message]:
    """As templates know them. Calls without names of their own get some, which the tools' answers take in order.

    Raises ApiError where a tool has two names.
    """
    messages: list[Message] = []
    calls_left = OpenCalls()
    num_calls = 0
    for number, each in enumerate(given):
        place = f"messages[{number}]"
        message: dict[str, Any] = {"role": each.role, "content": _content(each.content, each.images, f"{place}.images")}
        if each.thinking:
            message["reasoning_content"] = each.thinking
        if each.tool_calls:
            calls = []
            for call in each.tool_calls:
                call_id = call.id or f"call{num_calls:05d}"  # nine letters and digits, as Mistral's templates want
                num_calls += 1
                calls_left.add(call_id, call.function.name)
                calls.append(call_message(call.function.name, call.function.arguments, call_id))
            message["tool_calls"] = calls
        if each.role == "tool":
            name = agreed(f"{place}.tool_name", each.tool_name or None, f"{place}.name", each.name or None)
            pair = calls_left.take(each.tool_call_id, name)
            message["tool_call_id"] = each.tool_call_id or (pair[0] if pair else f"call{num_calls:05d}")
            name = name or (pair[1] if pair else None)
            message |= {"name": name} if name else {}
        messages.append(message)
    return messages


class OpenCalls:
    """Calls that no tool has answered yet, in their order. Each is found in one step, however many there are."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, str] = OrderedDict()
        self._ids: dict[str, deque[str]] = {}

    def add(self, call_id: str, name: str) -> None:
        """A call of a function of this name."""
        self._names[call_id] = name
        self._ids.setdefault(name, deque()).append(call_id)

    def take(self, call_id: str | None, name: str | None) -> tuple[str, str] | None:
        """The id and function of the call that is answered: of this id, else the first of this name, else the first."""
        if call_id is None and name is not None:
            ids = self._ids.get(name, deque())
            while ids and ids[0] not in self._names:
                ids.popleft()
            call_id = ids[0] if ids else None
        if call_id is None:
            call_id = next(iter(self._names), None)
        if call_id is None or call_id not in self._names:
            return None
        return call_id, self._names.pop(call_id)

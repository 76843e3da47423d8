"""What `/v1/messages` and its `count_tokens` take: Anthropic's words for what OpenAI's bodies say in theirs."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from reader_edge.server.anthropic.blocks import Texts, Turns
from reader_edge.server.anthropic.turn_reader import TurnReader
from reader_edge.server.api_error import agreed
from reader_edge.server.openai.messages import template_args
from reader_edge.server.schema import UNSUPPORTED, JsonObject, ignoring_types, within
from reader_edge.server.structured_outputs import RequestedFormat, Schema, schema_format
from reader_edge.server.tools import ClientTool, FlatNamedTool, MaxTools, Named, tool_use_of
from reader_edge_runtime import Conversation, GenerationConfig, SamplingConfig
from reader_edge_runtime.generation_config import MAX_STOP_CHARACTERS, MAX_STOPS, chosen_sampling
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse

_SAMPLING = {"temperature": 1.0}  # of a request that names none, to a model that recommends nothing

Stops = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)], ...],
    Meta(
        max_length=MAX_STOPS,
        description=f"a list of at most {MAX_STOPS} texts, each of 1 to {MAX_STOP_CHARACTERS} characters",
    ),
]


class _ToolChoice(JsonObject):
    disable_parallel_tool_use: bool = False


class AutoChoice(_ToolChoice, tag_field="type", tag="auto"):
    """The model decides whether it calls tools."""


class AnyChoice(_ToolChoice, tag_field="type", tag="any"):
    """It must call some."""


class NamedChoice(Named, tag_field="type", tag="tool", ignored="disable_parallel_tool_use"):
    """It must call this one, once."""


class NoChoice(JsonObject, tag_field="type", tag="none"):
    """It calls none."""


Display = Literal["summarized", "omitted"]


class EnabledThinking(JsonObject, tag_field="type", tag="enabled"):
    """budget_tokens: most of thoughts. display: "omitted" leaves them out of the answer."""

    budget_tokens: Annotated[int, Meta(ge=1)]
    display: Display = "summarized"


class AdaptiveThinking(JsonObject, tag_field="type", tag="adaptive"):
    """As the model's template has it."""

    display: Display = "summarized"


class ThinkingBetweenTools(JsonObject, tag_field="type", tag="between_tools"):
    """Likewise."""

    display: Display = "summarized"


class NoThinking(JsonObject, tag_field="type", tag="disabled"):
    """The answer alone."""


class JsonFormat(JsonObject, tag_field="type", tag="json_schema"):
    """JSON of a schema."""

    schema: Schema


class OutputConfig(JsonObject):
    """effort: how much to think, which the model's template may know."""

    effort: str | None = None
    format: JsonFormat | None = None


# Of Anthropic's accounts and machines, and of prompts that its server shortens: here the prompt is all that is sent.
_IGNORED = """
    betas billing_policy cache_control compaction context_management diagnostics fallback_credit_token fallbacks
    inference_geo metadata service_tier speed user_profile_id workspace_id
"""


class MessagesBody(JsonObject, ignored=_IGNORED, refused="container thread"):
    """The fields that make the prompt, and those of the answer, which change nothing where tokens are counted."""

    read_once = ("messages", "system", "tools", "output_config", "output_format")

    model: Annotated[str, Meta(description="the name of a model")] = ""
    messages: Turns
    system: Texts = ""
    # Those that Anthropic's server runs, or its models alone were taught, are left out: web_search_20250305 ...
    tools: Annotated[tuple[ClientTool, ...], MaxTools, ignoring_types("custom")] = ()
    tool_choice: AutoChoice | AnyChoice | NamedChoice | NoChoice = AutoChoice()
    thinking: EnabledThinking | AdaptiveThinking | ThinkingBetweenTools | NoThinking = AdaptiveThinking()
    output_config: OutputConfig = OutputConfig()
    output_format: JsonFormat | None = None

    stream: bool = False
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop_sequences: Stops = ()
    temperature: Annotated[float, within(SamplingConfig, "temperature")] | None = None
    top_p: Annotated[float, within(SamplingConfig, "top_p")] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    draft: Annotated[bool, Meta(description="false to decode this answer plainly")] = True

    mcp_servers: Annotated[tuple[Any, ...], Meta(max_length=0), UNSUPPORTED] = ()

    def thought_fields(self) -> list[str]:
        return ["thinking"] if isinstance(self.thinking, EnabledThinking) else []

    @property
    def hides_thoughts(self) -> bool:
        """Whether the answer has them as blocks without a text."""
        return not isinstance(self.thinking, NoThinking) and self.thinking.display == "omitted"

    def question(self) -> tuple[Conversation, ToolUse]:
        """The prompt, in which a last message of the assistant goes on, and the tools that the answer may call.

        Raises ApiError.
        """
        reader = TurnReader(self.tools)
        reader.read_system(self.system)
        for number, turn in enumerate(self.messages):
            reader.read(turn, f"messages[{number}]")
        use = self._tool_use(reader.tools)
        in_front = tuple(tool.declared for tool in self.tools if not tool.defer_loading) if use.tools else ()
        is_thinking = {EnabledThinking: True, NoThinking: False}.get(type(self.thinking))
        args = template_args(None, self.output_config.effort, is_thinking)
        last = reader.messages[-1] if reader.messages else {}
        continues = last.get("role") == "assistant" and bool(last["content"]) and not last.get("tool_calls")
        return Conversation(reader.messages, in_front, args, continues), use

    def _tool_use(self, tools: Sequence[ClientTool]) -> ToolUse:
        match self.tool_choice:
            case AnyChoice():
                return tool_use_of(tools, "required", not self.tool_choice.disable_parallel_tool_use)
            case NamedChoice():
                return tool_use_of(tools, FlatNamedTool(name=self.tool_choice.name))
            case NoChoice():
                return tool_use_of(tools, "none")
        return tool_use_of(tools, "auto", not self.tool_choice.disable_parallel_tool_use)

    def answer_format(self) -> RequestedFormat:
        """What format the answer is to have. Raises ApiError and ConfigError."""
        names = "output_config.format", "output_format"
        requested = agreed(names[0], self.output_config.format, names[1], self.output_format)
        return RequestedFormat() if requested is None else schema_format(requested.schema, False, names[0])

    def config(self, max_tokens: int, own_sampling: Mapping[str, float]) -> GenerationConfig:
        """How the answer is to be made, without its format. own_sampling: of `Engine.sampling`. Raises ConfigError."""
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return GenerationConfig(
            max_tokens=max_tokens,
            sampling=chosen_sampling(
                _SAMPLING | dict(own_sampling), {name: value for name, value in given.items() if value is not None}
            ),
            stop=self.stop_sequences,
            is_drafted=self.draft,
            splits_thinking=True,
            max_reasoning_tokens=self.thinking.budget_tokens if isinstance(self.thinking, EnabledThinking) else None,
        )

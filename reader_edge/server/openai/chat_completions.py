"""`/v1/chat/completions`: messages in, a message out."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from reader_edge.server.api_error import ApiError, agreed
from reader_edge.server.completion import THOUGHT, AnswerParser, CompletionRequest, CompletionRun, Json, text_in
from reader_edge.server.openai.choices import ChoicesEndpoint, chat_logprobs
from reader_edge.server.openai.generation_body import ChoicesBody, MaxTokens
from reader_edge.server.openai.messages import Messages, TemplateArgs, template_args, to_messages
from reader_edge.server.schema import UNSUPPORTED
from reader_edge.server.structured_outputs import (
    AnyText,
    RequestedFormat,
    ResponseFormat,
    only_format,
    requested_format,
)
from reader_edge.server.tools import MaxTools, Tool, ToolChoice, tool_use_of
from reader_edge_runtime import Conversation, GenerationChunk, GenerationResult
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta, ToolUse

_MAX_TOP_LOGPROBS = 20


class ChatBody(ChoicesBody, refused="audio echo input instructions max_output_tokens prompt suffix web_search_options"):
    """What `/v1/chat/completions` takes."""

    read_once = (*ChoicesBody.read_once, "messages", "tools", "response_format", "chat_template_kwargs")

    messages: Messages
    tools: Annotated[tuple[Tool, ...], MaxTools] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    response_format: ResponseFormat = AnyText()
    max_completion_tokens: MaxTokens | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: TemplateArgs | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool = True
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=_MAX_TOP_LOGPROBS)] = 0

    function_call: Annotated[Literal["none"] | None, UNSUPPORTED] = None
    functions: Annotated[tuple[Any, ...], Meta(max_length=0), UNSUPPORTED] = ()
    modalities: Annotated[tuple[Literal["text"], ...], UNSUPPORTED] = ()

    def tool_use(self) -> ToolUse:
        return tool_use_of(self.tools, self.tool_choice, self.parallel_tool_calls)

    def prompts(self, use: ToolUse) -> Sequence[Encodable]:
        args = template_args(self.chat_template_kwargs, self.reasoning_effort, self.enable_thinking)
        continues = self.continue_final_message or self.messages[-1].prefix
        name = "add_generation_prompt"
        is_turn = agreed(name, self.add_generation_prompt, f"chat_template_kwargs.{name}", args.get(name))
        if is_turn is not None and not (continues and not is_turn):
            args[name] = is_turn
        return [Conversation(to_messages(self.messages), use.tools, args, continues)]

    def answer_format(self) -> RequestedFormat:
        return only_format([requested_format(self.response_format, "response_format"), *self.guided_formats()])

    def requested_tokens(self) -> tuple[str, int | None]:
        names = "max_completion_tokens", "max_tokens"
        requested = agreed(names[0], self.max_completion_tokens, names[1], self.max_tokens)
        return names[self.max_completion_tokens is None], requested

    def requested_logprobs(self) -> tuple[bool, int]:
        if self.top_logprobs and not self.logprobs:
            sentence = f"'top_logprobs' is {self.top_logprobs}, but comes with 'logprobs' alone: set that to true."
            raise ApiError(400, sentence, "top_logprobs")
        return self.logprobs, self.top_logprobs


class ChatFormatter:
    """Words one message."""

    def __init__(self, parser: AnswerParser, tokenizer: Tokenizer, shows_thinking: bool) -> None:
        self._parser = parser
        self._tokenizer = tokenizer
        self._shows_thinking = shows_thinking

    @property
    def has_calls(self) -> bool:
        return self._parser.num_calls > 0 and not self._parser.is_inside_call

    def choice(self, result: GenerationResult) -> Json:
        deltas = self._parser.push(result)
        text, thought = text_in(deltas), text_in(deltas, THOUGHT)
        message: Json = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
        if thought and self._shows_thinking:
            message["reasoning_content"] = thought
        if self._parser.num_calls > 0:
            calls = [{name: value for name, value in call.items() if name != "index"} for call in _calls(deltas)]
            message |= {"content": text or None, "tool_calls": calls}
        return {"message": message, "logprobs": chat_logprobs(result, self._tokenizer)}

    def piece(self, chunk: GenerationChunk, is_first: bool) -> Json:
        deltas = self._parser.push(chunk)
        text, thought = text_in(deltas), text_in(deltas, THOUGHT)
        delta: Json = {"role": "assistant"} if is_first else {}
        if thought and self._shows_thinking:
            delta["reasoning_content"] = thought
        if is_first or text or thought:  # without it, some clients find no text to add to later (cline 12132)
            delta["content"] = text
        parts = _calls(deltas)
        if parts:
            delta["tool_calls"] = parts
        return {"delta": delta, "logprobs": chat_logprobs(chunk, self._tokenizer)}


def _calls(deltas: list[AnswerDelta]) -> list[Json]:
    """Calls, each once, with all of it that is here."""
    calls: list[Json] = []
    for each in deltas:
        if each.call >= 0 and calls and calls[-1]["index"] == each.call:
            calls[-1]["function"]["arguments"] += each.text  # type: ignore[index]
        elif each.call >= 0:
            calls.append(each.fields)
    return calls


class ChatEndpoint(ChoicesEndpoint[ChatBody]):
    """A route's handler."""

    body_type = ChatBody
    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    piece_object = "chat.completion.chunk"

    def _formatter(
        self, body: ChatBody, completion: CompletionRequest, answers: CompletionRun, number: int
    ) -> ChatFormatter:
        return ChatFormatter(self._parser(completion), self._tokenizer, body.include_reasoning)

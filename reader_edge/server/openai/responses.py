"""`/v1/responses`, of its part that is texts and calls of functions."""

import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta, structs

from reader_edge.server.api_error import agreed
from reader_edge.server.completion import CompletionRequest, CompletionRun, Json, sampling_of
from reader_edge.server.endpoint import Endpoint
from reader_edge.server.event_stream import NamedEventStream
from reader_edge.server.metrics import Metrics
from reader_edge.server.openai.generation_body import GenerationBody, MaxTokens
from reader_edge.server.openai.messages import TemplateArgs, template_args
from reader_edge.server.openai.response_input import AdditionalTools, InputItem, InputItems, to_messages_of_input
from reader_edge.server.openai.response_items import ResponseItems
from reader_edge.server.openai.response_store import ResponseStore
from reader_edge.server.openai.response_tools import CallableTool, ResponseTools, callable_tools, shown_tool
from reader_edge.server.schema import UNSUPPORTED, JsonObject, only
from reader_edge.server.settings import ServerSettings
from reader_edge.server.structured_outputs import AnyText, RequestedFormat, TextFormat, only_format, requested_format
from reader_edge.server.tools import FlatToolChoice, tool_use_of
from reader_edge_runtime import AsyncEngine, Conversation, GenerationResult, Message
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse

# Fields of every response that nothing here changes.
_WITHOUT_EFFECT: Json = {
    **dict.fromkeys(("max_tool_calls", "prompt_cache_key", "reasoning", "safety_identifier")),
    "top_logprobs": 0,
    "background": False,
    "service_tier": "default",
}


class ReasoningOptions(JsonObject, ignored="context summary generate_summary"):
    """effort: which the model's template may know. The rest asks for summaries, which there are none of."""

    effort: str | None = None


class TextOptions(JsonObject, ignored="verbosity"):
    """What the answer is to be like."""

    format: TextFormat = AnyText()


class ResponseStreamOptions(JsonObject, ignored="include_obfuscation"):
    """There is nothing to choose."""


Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16, description="an object of at most 16 texts of 512 characters, with names of 64"),
]


# What there is nothing of here, but for thoughts, which are no secret.
_Included = Literal[
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
    "file_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
]
_REFUSED = """
    best_of context_management conversation logprobs max_completion_tokens max_tokens max_tool_calls messages
    moderation prompt response_format suffix
"""


class ResponsesBody(GenerationBody, refused=_REFUSED):
    """What `/v1/responses` takes."""

    read_once = (*GenerationBody.read_once, "input", "text", "chat_template_kwargs")

    input: InputItems
    instructions: str = ""
    max_output_tokens: MaxTokens | None = None
    text: TextOptions = TextOptions()
    tools: ResponseTools = ()
    tool_choice: FlatToolChoice | None = None
    parallel_tool_calls: bool = True
    reasoning: ReasoningOptions = ReasoningOptions()
    metadata: Metadata | None = None  # which the response repeats
    reasoning_effort: str | None = None  # the word of chats, which Open WebUI keeps
    chat_template_kwargs: TemplateArgs | None = None
    enable_thinking: bool | None = None
    stream_options: ResponseStreamOptions = ResponseStreamOptions()
    include: Annotated[tuple[_Included, ...], UNSUPPORTED] = ()
    previous_response_id: str | None = None
    store: bool = True

    background: Annotated[bool, only(False)] = False
    n: Annotated[Literal[1], UNSUPPORTED] = 1
    top_logprobs: Annotated[Literal[0], UNSUPPORTED] = 0
    truncation: Annotated[Literal["disabled"], UNSUPPORTED] = "disabled"

    @property
    def every_tool(self) -> list[CallableTool]:
        """Those of the request and of its items. Raises ApiError for too many."""
        items = () if isinstance(self.input, str) else self.input
        added = (tool for item in items if isinstance(item, AdditionalTools) for tool in item.tools)
        return callable_tools([*self.tools, *added])

    def tool_use(self) -> ToolUse:
        return tool_use_of(self.every_tool, self.tool_choice, self.parallel_tool_calls)

    def prompts(self, use: ToolUse) -> Sequence[Encodable]:
        first: list[Message] = [{"role": "system", "content": self.instructions}] if self.instructions else []
        effort = agreed("reasoning.effort", self.reasoning.effort, "reasoning_effort", self.reasoning_effort)
        args = template_args(self.chat_template_kwargs, effort, self.enable_thinking)
        return [Conversation(first + to_messages_of_input(self.input), use.tools, args)]

    def answer_format(self) -> RequestedFormat:
        return only_format([requested_format(self.text.format, "text.format"), *self.guided_formats()])

    def requested_tokens(self) -> tuple[str, int | None]:
        return "max_output_tokens", self.max_output_tokens


@dataclass(frozen=True, slots=True)
class ResponseRequest(CompletionRequest):
    """tools: by the names that the model sees. caller: whose key the request had. items: to keep with the answer."""

    tools: Mapping[str, CallableTool] = field(default_factory=dict)
    caller: str = ""
    items: str | Sequence[InputItem] = ()


class ResponsesEndpoint(Endpoint[ResponsesBody]):
    """A route's handler."""

    body_type = ResponsesBody
    stream_type = NamedEventStream

    def __init__(
        self, engine: AsyncEngine, settings: ServerSettings, metrics: Metrics, store: ResponseStore | None = None
    ) -> None:
        """store: of responses that clients may go on from; by default none are kept."""
        super().__init__(engine, settings, metrics)
        self._store = ResponseStore() if store is None else store

    def _checked_completion_request(self, body: ResponsesBody, caller: str = "") -> CompletionRequest:
        if body.previous_response_id is not None:
            body = structs.replace(body, input=self._store.continued(caller, body.previous_response_id, body.input))
        completion = super()._checked_completion_request(body, caller)
        fields = {each.name: getattr(completion, each.name) for each in dataclasses.fields(completion)}
        tools = {tool.name: tool for tool in body.every_tool}
        return ResponseRequest(**fields, tools=tools, caller=caller, items=body.input if self._keeps(body) else ())

    def _keeps(self, body: ResponsesBody) -> bool:
        return body.store and self._store.most > 0

    def _completion_request(self, body: ResponsesBody) -> CompletionRequest:
        return body.completion_request(self._settings, self._tokenizer.call_syntax, self._engine.engine.sampling)

    def _whole(
        self,
        body: ResponsesBody,
        completion: CompletionRequest,
        answers: CompletionRun,
        results: list[GenerationResult],
    ) -> Json:
        items, reason = self._items(completion), results[0].finish_reason
        for _ in (*items.push(results[0]), *items.end(_status(reason))):
            pass
        return self._kept(body, completion, self._response(body, completion) | _end(items.output, reason, answers))

    def _items(self, completion: CompletionRequest) -> ResponseItems:
        assert isinstance(completion, ResponseRequest)
        return ResponseItems(self._parser(completion), completion.tools)

    def _kept(self, body: ResponsesBody, completion: CompletionRequest, response: Json) -> Json:
        """A response that has ended, kept where that is wanted."""
        if self._keeps(body):
            assert isinstance(completion, ResponseRequest)
            self._store.keep(completion.caller, completion.items, response)
        return response

    async def _events(
        self, body: ResponsesBody, completion: CompletionRequest, answers: CompletionRun
    ) -> AsyncGenerator[Json, None]:
        """What a stream tells, in OpenAI's order."""
        number = 0

        def event(kind: str, fields: Json) -> Json:
            nonlocal number
            number += 1
            return {"type": f"response.{kind}", "sequence_number": number - 1, **fields}

        head, items, reason = self._response(body, completion), self._items(completion), ""
        async for _, chunk in answers.pieces():
            if number == 0:  # not before it is taken in
                for kind in ("created", "in_progress"):
                    yield event(kind, {"response": head})
            for each in items.push(chunk):
                yield event(*each)
            reason = chunk.finish_reason or ""
        for each in items.end(_status(reason)):
            yield event(*each)
        response = self._kept(body, completion, head | _end(items.output, reason, answers))
        yield event(_status(reason), {"response": response})

    def _response(self, body: ResponsesBody, completion: CompletionRequest) -> Json:
        """A response before its answer, with what OpenAI's clients look for."""
        sampling, use = sampling_of(completion.configs[0]), completion.use
        return {
            "id": f"resp_{secrets.token_hex(24)}",
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "in_progress",
            "model": completion.adapter or self._settings.model_name,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions or None,
            "max_output_tokens": completion.configs[0].max_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": use.is_parallel,
            "previous_response_id": body.previous_response_id,
            "store": self._keeps(body),
            "temperature": sampling.temperature,
            "text": {"format": dict(completion.answer_format.echoed)},
            "tool_choice": use.choice,
            "tools": [shown_tool(tool) for tool in body.tools] if use.tools else [],
            "top_p": sampling.top_p,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "truncation": "disabled",
            "usage": None,
            **_WITHOUT_EFFECT,
        }


def _status(reason: str) -> str:
    return "completed" if reason == "stop" else "incomplete"


def _end(output: list[Json], reason: str, answers: CompletionRun) -> Json:
    """What becomes of a response at its end."""
    is_whole = reason == "stop"
    usage = answers.usage()
    return {
        "status": _status(reason),
        "completed_at": int(time.time()) if is_whole else None,
        "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
        "output": output,
        "usage": {
            **{name: usage[name] for name in ("deviation",) if name in usage},
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        },
    }

"""The wording of `/v1/responses`, of its part that is texts and calls of functions."""

import secrets
import time
from collections.abc import AsyncGenerator

from reader_edge.server.answers import Answers
from reader_edge.server.api_error import ApiError
from reader_edge.server.endpoint import Endpoint
from reader_edge.server.fields import Fields
from reader_edge.server.question import Json, Question
from reader_edge.server.response_input import read_input
from reader_edge.server.response_items import ResponseItems
from reader_edge.server.structured_outputs import AnswerForm, read_response_form
from reader_edge.server.tools import ToolUse
from reader_edge_runtime import Conversation, GenerationResult, Message
from reader_edge_runtime.text.conversation import Encodable

# What is not supported, with the values that ask for nothing.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "background": (False,),
    "conversation": (),
    "include": ([],),
    "max_tool_calls": (),
    "n": (1,),
    "previous_response_id": (),
    "prompt": (),
    "reasoning": ({},),
    "store": (False,),
    "stream_options": ({}, {"include_obfuscation": False}),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
_UNSAID: Json = {"parameters": None, "strict": None}  # of a function
# Fields of every response that nothing here changes.
_WITHOUT_EFFECT: Json = {
    **dict.fromkeys(("max_tool_calls", "prompt_cache_key", "reasoning", "safety_identifier")),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "top_logprobs"), 0),
    "background": False,
    "service_tier": "default",
}


class ResponseWording:
    """How a response is asked for. Nothing is stored, so none can go on from another."""

    def read_tools(self, fields: Fields) -> ToolUse:
        return ToolUse.read(fields, is_flat=True)

    def read_prompts(self, fields: Fields, use: ToolUse) -> list[Encodable]:
        for name, values in NEUTRAL.items():
            value = fields.take(name)
            if value is not None and value not in values:
                raise ApiError(400, f"'{name}' is not supported here: leave it out.", name, "unsupported_parameter")
        instructions = fields.get("instructions", str, "", "a text")
        first: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
        return [Conversation(first + read_input(fields.take("input")), use.tools)]

    def read_form(self, fields: Fields) -> AnswerForm:
        return read_response_form(fields)

    def read_max_tokens(self, fields: Fields, most: int) -> int:
        return fields.integer("max_output_tokens", most)

    def read_logprobs(self, fields: Fields) -> tuple[bool, int]:
        return False, 0


class ResponsesEndpoint(Endpoint):
    """A route's handler."""

    has_named_events = True

    def _whole(self, question: Question, answers: Answers, results: list[GenerationResult]) -> Json:
        items, reason = ResponseItems(self._reader(question)), results[0].finish_reason
        for _ in (*items.push(results[0].text, is_last=True), *items.end(_status(reason))):
            pass
        return self._response(question) | _end(items.output, reason, answers)

    async def _events(self, question: Question, answers: Answers) -> AsyncGenerator[Json, None]:
        """What a stream tells, in OpenAI's order."""
        number = 0

        def event(kind: str, fields: Json) -> Json:
            nonlocal number
            number += 1
            return {"type": f"response.{kind}", "sequence_number": number - 1, **fields}

        head, items, reason = self._response(question), ResponseItems(self._reader(question)), ""
        async for _, chunk in answers.pieces():
            if number == 0:  # not before it is taken in
                for kind in ("created", "in_progress"):
                    yield event(kind, {"response": head})
            for told in items.push(chunk.text, chunk.finish_reason is not None):
                yield event(*told)
            reason = chunk.finish_reason or ""
        for told in items.end(_status(reason)):
            yield event(*told)
        yield event(_status(reason), {"response": head | _end(items.output, reason, answers)})

    def _response(self, question: Question) -> Json:
        """A response before its answer, with what OpenAI's clients look for."""
        sampling, use = question.configs[0].sampling, question.use
        return {
            "id": f"resp_{secrets.token_hex(24)}",
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "in_progress",
            "model": self._settings.model_name,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": question.configs[0].max_tokens,
            "metadata": {},
            "parallel_tool_calls": use.is_parallel,
            "previous_response_id": None,
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": dict(question.form.told)},
            "tool_choice": use.choice,
            "tools": [
                {"strict": None, "parameters": None, **tool["function"], "type": "function"} for tool in use.tools
            ],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            **_WITHOUT_EFFECT,
        }


def _status(reason: str) -> str:
    return "completed" if reason == "stop" else "incomplete"


def _end(output: list[Json], reason: str, answers: Answers) -> Json:
    """What becomes of a response at its end."""
    is_whole = reason == "stop"
    usage = answers.usage()
    return {
        "status": _status(reason),
        "completed_at": int(time.time()) if is_whole else None,
        "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
        "output": output,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }

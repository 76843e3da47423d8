"""The wording of `/v1/responses`, of its part that is text: a message in, or several, a message out."""

import secrets
import time
from collections.abc import AsyncGenerator
from typing import cast

from reader_edge.server.answers import Answers
from reader_edge.server.api_error import ApiError
from reader_edge.server.endpoint import Endpoint
from reader_edge.server.fields import Fields
from reader_edge.server.question import Json, Question
from reader_edge.server.structured_outputs import AnswerForm, read_response_form
from reader_edge.server.tools import ToolUse
from reader_edge_runtime import GenerationResult, Message
from reader_edge_runtime.text.conversation import Encodable

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_PARTS = ("input_text", "output_text")
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
    "tool_choice": ("auto", "none"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
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
        return ToolUse()  # which `read_prompts` refuses

    def read_prompts(self, fields: Fields, use: ToolUse) -> list[Encodable]:
        for name, values in NEUTRAL.items():
            value = fields.take(name)
            if value is not None and value not in values:
                raise ApiError(400, f"'{name}' is not supported here: leave it out.", name, "unsupported_parameter")
        instructions = fields.get("instructions", str, "", "a text")
        said = fields.take("input")
        items = [{"role": "user", "content": said}] if isinstance(said, str) else said
        if not isinstance(items, list) or not items:
            raise ApiError(400, "'input' must be a text or a list of messages.", "input")
        first: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
        return [first + [_message(each, f"input[{number}]") for number, each in enumerate(items)]]

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
        head, item = self._response(question), _item()
        return head | _end(item, results[0].text, results[0].finish_reason, answers)

    async def _events(self, question: Question, answers: Answers) -> AsyncGenerator[Json, None]:
        """What a stream tells, in OpenAI's order."""
        number = 0

        def event(kind: str, **fields: object) -> Json:
            nonlocal number
            number += 1
            return {"type": f"response.{kind}", "sequence_number": number - 1, **fields}

        head, item, texts, reason = self._response(question), _item(), [], ""
        place: Json = {"output_index": 0}
        part_place = place | {"item_id": item["id"], "content_index": 0}
        async for _, chunk in answers.pieces():
            if number == 0:  # not before it is taken in
                for kind in ("created", "in_progress"):
                    yield event(kind, response=head)
                yield event("output_item.added", item=item, **place)
                yield event("content_part.added", part=_part(""), **part_place)
            if chunk.text:
                texts.append(chunk.text)
                yield event("output_text.delta", delta=chunk.text, logprobs=[], **part_place)
            reason = chunk.finish_reason or ""
        text = "".join(texts)
        end = _end(item, text, reason, answers)
        yield event("output_text.done", text=text, logprobs=[], **part_place)
        yield event("content_part.done", part=_part(text), **part_place)
        yield event("output_item.done", item=cast(list[Json], end["output"])[0], **place)
        yield event(cast(str, end["status"]), response=head | end)

    def _response(self, question: Question) -> Json:
        """A response before its answer, with what OpenAI's clients look for."""
        sampling = question.configs[0].sampling
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
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": dict(question.form.told)},
            "tool_choice": "none",
            "tools": [],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            **_WITHOUT_EFFECT,
        }


def _end(item: Json, text: str, reason: str, answers: Answers) -> Json:
    """What becomes of a response at its end."""
    is_whole = reason == "stop"
    status = "completed" if is_whole else "incomplete"
    usage = answers.usage()
    return {
        "status": status,
        "completed_at": int(time.time()) if is_whole else None,
        "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
        "output": [item | {"status": status, "content": [_part(text)]}],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def _item() -> Json:
    name = f"msg_{secrets.token_hex(24)}"
    return {"id": name, "type": "message", "role": "assistant", "status": "in_progress", "content": []}


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(value: object, place: str) -> Message:
    fields = value if isinstance(value, dict) else {}
    role, content = fields.get("role"), fields.get("content")
    if fields.get("type", "message") != "message" or not isinstance(role, str) or role not in _ROLES:
        sentence = f"'{place}' must be a message with a 'role' of {', '.join(_ROLES)}: others are not supported here."
        raise ApiError(400, sentence, "input")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(map(_is_text_part, parts)):
        raise ApiError(400, f"'{place}.content' must be a text, or a list of parts of type 'input_text'.", "input")
    return {"role": _ROLES[role], "content": "".join(part["text"] for part in parts)}


def _is_text_part(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in _PARTS and isinstance(part.get("text"), str)

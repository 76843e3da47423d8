"""Anthropic's `/v1/messages`: the same engine, its answers in Anthropic's words."""

import secrets
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from reader_edge.server.anthropic.bodies import MessagesBody
from reader_edge.server.anthropic.content import ContentBlocks
from reader_edge.server.api_error import ApiError, api_error
from reader_edge.server.completion import CompletionRequest, CompletionRun, Json, check_model, seed_headers
from reader_edge.server.endpoint import Endpoint
from reader_edge.server.event_stream import NamedEventStream
from reader_edge.server.request_log import RequestNote
from reader_edge.server.tool_grammar import tool_grammar
from reader_edge_runtime import GenerationResult
from reader_edge_runtime.errors import PromptTooLongError


class MessageStream(NamedEventStream):
    """Events as Anthropic names them; an error among them is the last."""

    def _failure(self, error: ApiError, number: int) -> Json:
        return error.anthropic_fields

    def _heartbeat(self, progress: Json, note: RequestNote) -> bytes:
        return self._event({"type": "ping"})


class MessagesEndpoint(Endpoint[MessagesBody]):
    """A route's handler."""

    body_type = MessagesBody
    stream_type = MessageStream

    def _completion_request(self, body: MessagesBody) -> CompletionRequest:
        check_model(body.model, self._settings)
        (prompt, use), answer_format = body.question(), body.answer_format()
        max_tokens, headers = self._settings.allowed_tokens("max_tokens", body.max_tokens)
        config = body.config(max_tokens, self._engine.engine.sampling)
        grammar = tool_grammar(use, self._tokenizer.call_syntax, answer_format.grammar)
        return CompletionRequest(
            prompts=[prompt],
            configs=[replace(config, grammar=grammar)],
            use=use,
            answer_format=answer_format,
            is_streamed=body.stream,
            names_temperature=body.temperature is not None,
            headers=headers | seed_headers(config),
        )

    def _whole(
        self,
        body: MessagesBody,
        completion: CompletionRequest,
        answers: CompletionRun,
        results: list[GenerationResult],
    ) -> Json:
        content = ContentBlocks(self._parser(completion), body.hides_thoughts)
        for _ in content.push(results[0]):
            pass
        return self._message(completion, answers) | {"content": content.blocks} | content.stop(results[0])

    async def _events(
        self, body: MessagesBody, completion: CompletionRequest, answers: CompletionRun
    ) -> AsyncGenerator[Json, None]:
        """What a stream tells, in Anthropic's order."""
        content, is_begun = ContentBlocks(self._parser(completion), body.hides_thoughts), False
        async for _, chunk in answers.pieces():
            if not is_begun:  # not before it is taken in
                is_begun = True
                yield {"type": "message_start", "message": self._message(completion, answers)}
                yield {"type": "ping"}
            for event in content.push(chunk):
                yield event
            if chunk.finish_reason is not None:
                yield {"type": "message_delta", "delta": content.stop(chunk), "usage": _usage(answers)}
                yield {"type": "message_stop"}

    def _refusal(self, error: Exception) -> Response:
        if isinstance(error, PromptTooLongError):  # in the words by which Claude Code knows that it must compact
            sentence = f"prompt is too long: {error.num_tokens} tokens > {error.max_context} maximum"
            return ApiError(400, sentence, "messages").response("anthropic")
        return api_error(error).response("anthropic")

    def _message(self, completion: CompletionRequest, answers: CompletionRun) -> Json:
        """A message before its content."""
        return {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": completion.adapter or self._settings.model_name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(answers),
        }


class CountTokensEndpoint(MessagesEndpoint):
    """How many tokens a message's prompt has; nothing is decoded."""

    def _direct_answer(self, body: MessagesBody) -> Json:
        check_model(body.model, self._settings)
        return {"input_tokens": len(self._engine.engine.encode_prompt(body.question()[0]))}


def _usage(answers: CompletionRun) -> Json:
    """Tokens counted so far. Those of the prompt that were in the KV cache are counted apart, as Anthropic's are."""
    usage: dict[str, Any] = answers.usage()
    num_cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {name: usage[name] for name in ("deviation",) if name in usage} | {
        "input_tokens": usage["prompt_tokens"] - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
    }

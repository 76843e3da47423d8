"""The wording of `/v1/chat/completions`."""

from typing import cast

from reader_edge.server.api_error import ApiError
from reader_edge.server.fields import Fields
from reader_edge.server.logprob_fields import chat_logprobs
from reader_edge.server.question import Json
from reader_edge_runtime import GenerationChunk, GenerationResult, Message
from reader_edge_runtime.engine import Encodable
from reader_edge_runtime.text.tokenizer import Tokenizer

_MAX_TOP_LOGPROBS = 20
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class ChatWording:
    """Messages in, a message out."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    piece_object = "chat.completion.chunk"

    def read_prompts(self, fields: Fields) -> list[Encodable]:
        messages = fields.get("messages", list, [], "a list of messages")
        if not messages:
            raise ApiError(400, "'messages' must have at least one message.", "messages")
        return [[_message(each, f"messages[{number}]") for number, each in enumerate(messages)]]

    def read_max_tokens(self, fields: Fields, most: int) -> int:
        old = fields.integer("max_tokens", most)
        return fields.integer("max_completion_tokens", old)

    def read_logprobs(self, fields: Fields) -> tuple[bool, int]:
        is_wanted, num_top = fields.flag("logprobs"), fields.integer("top_logprobs", 0)
        if not 0 <= num_top <= _MAX_TOP_LOGPROBS or (num_top and not is_wanted):
            sentence = f"'top_logprobs' must be from 0 to {_MAX_TOP_LOGPROBS}, and come with 'logprobs': true."
            raise ApiError(400, sentence, "top_logprobs")
        return is_wanted, num_top

    def choice(self, index: int, result: GenerationResult, tokenizer: Tokenizer) -> Json:
        message = {"role": "assistant", "content": result.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": chat_logprobs(result, tokenizer)}

    def piece(self, index: int, chunk: GenerationChunk, is_first: bool, tokenizer: Tokenizer) -> Json:
        delta: Json = {"role": "assistant"} if is_first else {}
        if is_first or chunk.text:
            delta["content"] = chunk.text
        return {"index": index, "delta": delta, "logprobs": chat_logprobs(chunk, tokenizer)}


def _message(value: object, place: str) -> Message:
    if not isinstance(value, dict):
        raise ApiError(400, f"'{place}' must be an object with 'role' and 'content'.", "messages")
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise ApiError(400, f"'{place}.role' must be one of {', '.join(_ROLES)}.", "messages")
    extra = sorted(name for name in value if name not in ("role", "content", "name", "refusal") and value[name])
    if extra:
        raise ApiError(400, f"'{place}.{extra[0]:.60}' is not supported here: leave it out.", "messages")
    return {"role": _ROLES[role], "content": _text(value.get("content"), f"{place}.content")}


def _text(content: object, place: str) -> str:
    """A content's text: it may come in parts."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts
    ):
        raise ApiError(400, f"'{place}' must be a text, or a list of parts of type 'text'.", "messages")
    return "".join(cast(str, part["text"]) for part in parts)

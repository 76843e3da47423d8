"""The wording of `/v1/chat/completions`."""

from reader_edge.server.api_error import ApiError, wrong_value
from reader_edge.server.fields import Fields
from reader_edge.server.logprob_fields import chat_logprobs
from reader_edge.server.messages import read_messages
from reader_edge.server.question import Json
from reader_edge.server.structured_outputs import AnswerForm, read_form
from reader_edge.server.tool_calls import CallReader, Said
from reader_edge.server.tools import ToolUse
from reader_edge_runtime import Conversation, GenerationChunk, GenerationResult
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.tokenizer import Tokenizer

_MAX_TOP_LOGPROBS = 20


class ChatWording:
    """Messages in, a message out."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    piece_object = "chat.completion.chunk"

    def read_tools(self, fields: Fields) -> ToolUse:
        return ToolUse.read(fields)

    def read_prompts(self, fields: Fields, use: ToolUse) -> list[Encodable]:
        return [Conversation(read_messages(fields.get("messages", list, [], "a list of messages")), use.tools)]

    def read_form(self, fields: Fields) -> AnswerForm:
        return read_form(fields)

    def read_max_tokens(self, fields: Fields, most: int) -> int:
        old = fields.integer("max_tokens", most)
        new = fields.integer("max_completion_tokens", old)
        return new if 1 <= old <= most else old  # which is refused, though it says nothing

    def read_logprobs(self, fields: Fields) -> tuple[bool, int]:
        is_wanted, num_top = fields.flag("logprobs"), fields.integer("top_logprobs", 0)
        if not 0 <= num_top <= _MAX_TOP_LOGPROBS:
            raise wrong_value("top_logprobs", num_top, f"from 0 to {_MAX_TOP_LOGPROBS}", "top_logprobs")
        if num_top and not is_wanted:
            raise ApiError(400, "'top_logprobs' come with 'logprobs': true, which is missing.", "top_logprobs")
        return is_wanted, num_top

    def choice(self, index: int, result: GenerationResult, tokenizer: Tokenizer, calls: CallReader | None) -> Json:
        said = [Said(result.text)] if calls is None else calls.push(result.text, is_last=True)
        text = "".join(each.text for each in said if each.call < 0)
        message: Json = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
        if calls is not None and calls.num_calls:
            message |= {"content": text or None, "tool_calls": [_without_index(call) for call in _calls(said)]}
        return {"index": index, "message": message, "logprobs": chat_logprobs(result, tokenizer)}

    def piece(
        self, index: int, chunk: GenerationChunk, is_first: bool, tokenizer: Tokenizer, calls: CallReader | None
    ) -> Json:
        is_last = chunk.finish_reason is not None
        said = [Said(chunk.text)] if calls is None else calls.push(chunk.text, is_last)
        text = "".join(each.text for each in said if each.call < 0)
        delta: Json = {"role": "assistant"} if is_first else {}
        if is_first or text:
            delta["content"] = text
        parts = _calls(said)
        if parts:
            delta["tool_calls"] = parts
        return {"index": index, "delta": delta, "logprobs": chat_logprobs(chunk, tokenizer)}


def _calls(said: list[Said]) -> list[Json]:
    """Calls, each once, with all that is said of it here."""
    calls: list[Json] = []
    for each in said:
        if each.call >= 0 and calls and calls[-1]["index"] == each.call:
            calls[-1]["function"]["arguments"] += each.text  # type: ignore[index]
        elif each.call >= 0:
            calls.append(each.fields)
    return calls


def _without_index(call: Json) -> Json:
    return {name: value for name, value in call.items() if name != "index"}

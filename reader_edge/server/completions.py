"""The wording of `/v1/completions`."""

from typing import cast

from reader_edge.server.api_error import ApiError, wrong_value
from reader_edge.server.fields import Fields
from reader_edge.server.logprob_fields import completion_logprobs
from reader_edge.server.question import Json
from reader_edge.server.settings import MAX_CHOICES
from reader_edge.server.structured_outputs import AnswerForm, read_form
from reader_edge.server.tool_calls import CallReader
from reader_edge.server.tools import ToolUse
from reader_edge_runtime import GenerationChunk, GenerationResult
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.tokenizer import Tokenizer

_MAX_TOKENS = 16  # what OpenAI gives who asks for no number
_MAX_LOGPROBS = 5


class CompletionWording:
    """Texts or token ids in, how they go on out."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    piece_object = "text_completion"

    def read_tools(self, fields: Fields) -> ToolUse:
        return ToolUse()

    def read_prompts(self, fields: Fields, use: ToolUse) -> list[Encodable]:
        value = fields.take("prompt")
        prompts = value if isinstance(value, list) and not _is_token_ids(value) else [value]
        if len(prompts) > MAX_CHOICES:  # told before all of them are looked at
            sentence = f"'prompt' asks for {len(prompts)} answers together: 1 to {MAX_CHOICES} are given here."
            raise ApiError(400, sentence, "prompt")
        if not prompts or not all(isinstance(each, str) or _is_token_ids(each) for each in prompts):
            raise wrong_value("prompt", value, "a text, a list of token ids, or a list of such", "prompt")
        return cast(list[Encodable], prompts)

    def read_form(self, fields: Fields) -> AnswerForm:
        return read_form(fields)

    def read_max_tokens(self, fields: Fields, most: int) -> int:
        return fields.integer("max_tokens", min(_MAX_TOKENS, most))

    def read_logprobs(self, fields: Fields) -> tuple[bool, int]:
        is_wanted = fields.has("logprobs")
        num_top = fields.integer("logprobs", 0)
        if not 0 <= num_top <= _MAX_LOGPROBS:
            raise wrong_value("logprobs", num_top, f"from 0 to {_MAX_LOGPROBS}", "logprobs")
        return is_wanted, num_top

    def choice(self, index: int, result: GenerationResult, tokenizer: Tokenizer, calls: CallReader | None) -> Json:
        return {"index": index, "text": result.text, "logprobs": completion_logprobs(result, tokenizer)}

    def piece(
        self, index: int, chunk: GenerationChunk, is_first: bool, tokenizer: Tokenizer, calls: CallReader | None
    ) -> Json:
        return {"index": index, "text": chunk.text, "logprobs": completion_logprobs(chunk, tokenizer)}


def _is_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)

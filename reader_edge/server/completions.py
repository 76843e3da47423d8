"""`/v1/completions`: texts or token ids in, how they go on out."""

from collections.abc import Sequence
from typing import Annotated, Literal, cast

from msgspec import Meta

from reader_edge.server.answer_body import ChoicesBody
from reader_edge.server.api_error import ApiError, wrong_value
from reader_edge.server.contract import UNSUPPORTED
from reader_edge.server.endpoint import ChoicesEndpoint
from reader_edge.server.logprob_fields import completion_logprobs
from reader_edge.server.question import Json
from reader_edge.server.settings import MAX_CHOICES
from reader_edge.server.structured_outputs import AnswerForm, AnyText, ResponseFormat, form_of_format, only_form
from reader_edge.server.tool_calls import CallReader
from reader_edge.server.tools import ToolUse
from reader_edge_runtime import GenerationChunk, GenerationResult
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.tokenizer import Tokenizer

_MAX_TOKENS = 16  # what OpenAI gives who asks for no number
_MAX_LOGPROBS = 5
_PROMPTS = "a text, a list of token ids, or a list of such"


class CompletionBody(ChoicesBody):
    """What `/v1/completions` takes."""

    prompt: Annotated[str | Annotated[list[int | str | list[int]], Meta(min_length=1)], Meta(description=_PROMPTS)]
    response_format: ResponseFormat = AnyText()
    logprobs: Annotated[int, Meta(ge=0, le=_MAX_LOGPROBS)] | None = None

    echo: bool = False
    suffix: Annotated[Literal[""], UNSUPPORTED] = ""

    def prompts(self, use: ToolUse) -> Sequence[Encodable]:
        if self.echo:
            raise ApiError(400, "'echo' is not supported here: leave it out.", "echo", "unsupported_parameter")
        if isinstance(self.prompt, str) or _is_token_ids(self.prompt):
            return [cast(Encodable, self.prompt)]
        if len(self.prompt) > MAX_CHOICES:  # told before all of them are looked at
            sentence = f"'prompt' asks for {len(self.prompt)} answers together: 1 to {MAX_CHOICES} are given here."
            raise ApiError(400, sentence, "prompt")
        if not all(isinstance(each, str) or _is_token_ids(each) for each in self.prompt):
            raise wrong_value("prompt", self.prompt, _PROMPTS, "prompt")
        return cast(Sequence[Encodable], self.prompt)

    def form(self) -> AnswerForm:
        return only_form([form_of_format(self.response_format, "response_format"), *self.guided_forms()])

    def asked_tokens(self) -> tuple[str, int | None]:
        return "max_tokens", _MAX_TOKENS if self.max_tokens is None else self.max_tokens

    def asked_logprobs(self) -> tuple[bool, int]:
        return self.logprobs is not None, self.logprobs or 0


class CompletionWording:
    """How a text goes on."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    piece_object = "text_completion"

    def choice(self, index: int, result: GenerationResult, tokenizer: Tokenizer, calls: CallReader | None) -> Json:
        return {"index": index, "text": result.text, "logprobs": completion_logprobs(result, tokenizer)}

    def piece(
        self, index: int, chunk: GenerationChunk, is_first: bool, tokenizer: Tokenizer, calls: CallReader | None
    ) -> Json:
        return {"index": index, "text": chunk.text, "logprobs": completion_logprobs(chunk, tokenizer)}


def _is_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


class CompletionsEndpoint(ChoicesEndpoint[CompletionBody]):
    """A route's handler."""

    body_type = CompletionBody
    wording = CompletionWording()

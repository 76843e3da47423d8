"""`/v1/completions`: texts or token ids in, how they go on out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, cast

from msgspec import Meta

from reader_edge.server.api_error import ApiError, wrong_value
from reader_edge.server.completion import CompletionRequest, CompletionRun, Json
from reader_edge.server.openai.choices import ChoicesEndpoint
from reader_edge.server.openai.generation_body import ChoicesBody
from reader_edge.server.openai.text_offsets import TextOffsets, prompt_offsets
from reader_edge.server.settings import MAX_CHOICES
from reader_edge.server.structured_outputs import (
    AnyText,
    RequestedFormat,
    ResponseFormat,
    only_format,
    requested_format,
)
from reader_edge_runtime import GenerationChunk, GenerationConfig, GenerationResult
from reader_edge_runtime.decoding.sampling.sampler import TokenLogprob
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse

_MAX_TOKENS = 16  # what OpenAI gives who asks for no number
_MAX_LOGPROBS = 5
_COUNT = "a whole number of 1 or more, or -1 for as many as there may be, or 0 with 'echo'"
_PROMPTS = "a text, a list of token ids, or a list of such"


class CompletionBody(ChoicesBody, refused="input max_completion_tokens messages tools top_logprobs"):
    """What `/v1/completions` takes."""

    read_once = (*ChoicesBody.read_once, "prompt", "response_format", "suffix")

    prompt: Annotated[str | Annotated[list[int | str | list[int]], Meta(min_length=1)], Meta(description=_PROMPTS)]
    response_format: ResponseFormat = AnyText()
    logprobs: Annotated[int, Meta(ge=0, le=_MAX_LOGPROBS)] | None = None

    max_tokens: Annotated[int, Meta(ge=-1, description=_COUNT)] | None = None
    echo: bool = False
    suffix: Annotated[str, Meta(description="the text behind what is filled in")] = ""

    def prompts(self, use: ToolUse) -> Sequence[Encodable]:
        if isinstance(self.prompt, str) or _is_token_ids(self.prompt):
            return [cast(Encodable, self.prompt)]
        if len(self.prompt) > MAX_CHOICES:  # refused before all of them are looked at
            sentence = f"'prompt' asks for {len(self.prompt)} answers together: 1 to {MAX_CHOICES} are given here."
            raise ApiError(400, sentence, "prompt")
        if not all(isinstance(each, str) or _is_token_ids(each) for each in self.prompt):
            raise wrong_value("prompt", self.prompt, _PROMPTS, "prompt")
        return cast(Sequence[Encodable], self.prompt)

    def answer_format(self) -> RequestedFormat:
        return only_format([requested_format(self.response_format, "response_format"), *self.guided_formats()])

    def requested_tokens(self) -> tuple[str, int | None]:
        if self.echo and self.max_tokens == 0:
            return "max_tokens", 1  # which is not returned
        return "max_tokens", _MAX_TOKENS if self.max_tokens is None else self.max_tokens

    def requested_logprobs(self) -> tuple[bool, int]:
        return self.logprobs is not None, self.logprobs or 0

    def config(self, max_tokens: int, own_sampling: Mapping[str, float] = MappingProxyType({})) -> GenerationConfig:
        wants_prompt_logprobs = self.echo and self.logprobs is not None
        config = ChoicesBody.config(self, max_tokens, own_sampling)
        # What is thought is a part of the text: there is no place beside it.
        return replace(config, wants_prompt_logprobs=wants_prompt_logprobs, splits_thinking=False)


class CompletionFormatter:
    """Words how one text goes on, behind the prompt's own text where that is returned too."""

    has_calls = False

    def __init__(
        self, tokenizer: Tokenizer, prompt: Encodable, token_ids: Sequence[int], is_echoed: bool, is_hidden: bool
    ) -> None:
        """is_echoed: whether the prompt's text is returned, is_hidden: and nothing else."""
        self._prompt = prompt if isinstance(prompt, str) else None
        self._echoed = ""  # what is still to tell of the prompt
        if is_echoed:
            self._echoed = tokenizer.decode(token_ids) if self._prompt is None else self._prompt
        self._logprobs = CompletionLogprobs(tokenizer, token_ids, self._echoed)
        self._is_hidden = is_hidden

    def choice(self, result: GenerationResult) -> Json:
        return self._fields(result)

    def piece(self, chunk: GenerationChunk, is_first: bool) -> Json:
        return self._fields(chunk)

    def _fields(self, answered: GenerationResult | GenerationChunk) -> Json:
        echoed, self._echoed = self._echoed, ""
        of_prompt = None
        if answered.prompt_logprobs:  # which come once
            of_prompt = self._logprobs.of_prompt(self._prompt, answered.prompt_logprobs)
        if self._is_hidden:
            return {"text": echoed, "logprobs": of_prompt}
        return {"text": echoed + answered.text, "logprobs": joined(of_prompt, self._logprobs.of_answer(answered))}


def _is_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


class CompletionsEndpoint(ChoicesEndpoint[CompletionBody]):
    """A route's handler."""

    body_type = CompletionBody
    id_prefix = "cmpl-"
    whole_object = piece_object = "text_completion"

    def _completion_request(self, body: CompletionBody) -> CompletionRequest:
        completion = super()._completion_request(body)
        if body.suffix:
            if body.echo:
                raise ApiError(400, "'echo' has no place beside 'suffix': leave one out.", "echo")
            completion = completion.filling_in(self._tokenizer, body.suffix)
        if body.max_tokens != 0:
            return completion
        # The one token that is decoded is not returned, so nothing about it may end the answer.
        configs = [
            replace(config, stop=(), stop_token_ids=(), ignores_eos=True, grammar=None) for config in completion.configs
        ]
        return replace(completion, configs=configs, is_answer_hidden=True)

    def _formatter(
        self, body: CompletionBody, completion: CompletionRequest, answers: CompletionRun, number: int
    ) -> CompletionFormatter:
        prompt, token_ids = completion.prompts[number], answers.prompt_token_ids(number)
        return CompletionFormatter(self._tokenizer, prompt, token_ids, body.echo, completion.is_answer_hidden)


class CompletionLogprobs:
    """Of one completion, whole or piece by piece. Offsets count characters from the beginning of what is returned."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], echoed: str = "") -> None:
        """echoed: the prompt's text where it is returned before the completion."""
        self._tokenizer = tokenizer
        self._prompt_token_ids = prompt_token_ids
        self._offsets = TextOffsets.behind(prompt_token_ids, len(echoed), tokenizer)

    def of_prompt(self, prompt: str | None, logprobs: Sequence[TokenLogprob | None]) -> Json:
        """Those of a prompt that is returned with its completion: one for each token, null for the first.

        prompt: as it was given; None where it was token ids.
        """
        token_ids = self._prompt_token_ids
        offsets = prompt_offsets(prompt, token_ids, self._tokenizer)
        num_before = next((i for i, each in enumerate(token_ids) if self._has_text(each)), len(token_ids))
        spelled = (self._spelled(each, is_first=number == num_before) for number, each in enumerate(token_ids))
        return self._fields_of(zip(spelled, logprobs, offsets, strict=True))

    def of_answer(self, answered: GenerationChunk | GenerationResult) -> Json | None:
        """Those of the tokens that have a text; None where they were not requested.

        Those that end the answer with a stop text are among them, at offsets from the end of the text on.
        """
        if not answered.logprobs:
            return None
        placed = []
        for token_id, each in zip(answered.token_ids, answered.logprobs, strict=True):
            if self._has_text(token_id):
                name = self._spelled(token_id, self._offsets.is_first)
                placed.append((name, each, self._offsets.push(token_id)))
        return self._fields_of(placed)

    def _fields_of(self, entries: Iterable[tuple[str, TokenLogprob | None, int]]) -> Json:
        """Names, values and offsets of tokens as lists."""
        tokens, logprobs, offsets = [], [], []
        for name, each, offset in entries:
            tokens.append(name)
            logprobs.append(each)
            offsets.append(offset)
        tops = [None if each is None else {self._spelled(i): value for i, value in each.top} for each in logprobs]
        return {
            "tokens": tokens,
            "token_logprobs": [None if each is None else each.logprob for each in logprobs],
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _has_text(self, token_id: int) -> bool:
        return self._tokenizer.token(token_id) is not None

    def _spelled(self, token_id: int, is_first: bool = False) -> str:
        """A token's text; of a part of a character the bytes, as OpenAI writes them: no two are called alike."""
        spelled = self._tokenizer.token_bytes(token_id, is_first)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def joined(first: Json | None, second: Json | None) -> Json | None:
    """Those of a prompt and of its completion in one."""
    if first is None or second is None:
        return first or second
    return {name: [*first[name], *second[name]] for name in first}  # type: ignore[misc]

"""`/tokenize` and `/detokenize`, in the words of llama.cpp's server and of vLLM's."""

from abc import abstractmethod
from typing import Annotated, Any, NoReturn, TypeVar

from msgspec import Meta

from reader_edge.server.api_error import ApiError, agreed
from reader_edge.server.completion import Json, check_model
from reader_edge.server.endpoint import Endpoint
from reader_edge.server.openai.messages import MAX_ITEMS, ChatMessage, TemplateArgs, template_args, to_messages
from reader_edge.server.schema import JsonObject
from reader_edge.server.tools import MaxTools, Tool, tool_use_of
from reader_edge_runtime import Conversation

ModelName = Annotated[str, Meta(description="the name of a model, where there are several")]


class TokensBody(JsonObject):
    """What both have."""

    model: ModelName | None = None


class TokenizeBody(TokensBody):
    """A text (`content` is llama.cpp's word, `prompt` vLLM's) or messages.

    add_special, add_special_tokens: whether start tokens come before; by default before a `prompt` alone.
    parse_special: whether the text may spell control tokens. with_pieces, return_token_strs: texts of tokens too.
    """

    content: str | None = None
    prompt: str | None = None
    messages: Annotated[tuple[ChatMessage, ...], Meta(max_length=MAX_ITEMS)] = ()
    tools: Annotated[tuple[Tool, ...], MaxTools] = ()
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool = True
    with_pieces: bool = False
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: TemplateArgs | None = None


class DetokenizeBody(TokensBody):
    """Token ids."""

    tokens: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(description="a list of token ids")]


AnyTokens = TypeVar("AnyTokens", bound=TokensBody)


class TokensEndpoint(Endpoint[AnyTokens]):
    """One that decodes nothing: each request has a direct answer."""

    def _direct_answer(self, body: AnyTokens) -> Json:
        check_model(body.model or self._settings.model_name, self._settings)
        return self._answer(body)

    @abstractmethod
    def _answer(self, body: AnyTokens) -> Json:
        """Raises ApiError and PromptError."""

    def _never(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError  # the direct answer comes before all of these

    _completion_request = _whole = _events = _never


class TokenizeEndpoint(TokensEndpoint[TokenizeBody]):
    """A text in, its tokens out."""

    body_type = TokenizeBody

    def _answer(self, body: TokenizeBody) -> Json:
        ids = self._ids(body)
        tokens: list[Any] = ids
        if body.with_pieces:
            tokens = [{"id": each, "piece": _piece(self._tokenizer.token_bytes(each))} for each in ids]
        answer: Json = {"tokens": tokens, "count": len(ids)}
        answer["max_model_len"] = self._engine.engine.package.manifest.max_context
        if body.return_token_strs:
            answer["token_strs"] = [self._tokenizer.token_bytes(each).decode(errors="replace") for each in ids]
        return answer

    def _ids(self, body: TokenizeBody) -> list[int]:
        text = agreed("content", body.content, "prompt", body.prompt)
        if body.messages:
            if text is not None:
                raise ApiError(400, "'messages' stand beside a text: leave one out.", "messages")
            args = template_args(body.chat_template_kwargs, None, None)
            if not body.add_generation_prompt and not body.continue_final_message:
                args["add_generation_prompt"] = False
            tools = tool_use_of(body.tools).tools
            return self._engine.engine.encode_prompt(
                Conversation(to_messages(body.messages), tools, args, body.continue_final_message)
            )
        if text is None:
            raise ApiError(400, "'content' is missing: give a text, or 'messages'.", "content")
        added = agreed("add_special", body.add_special, "add_special_tokens", body.add_special_tokens)
        is_added = body.content is None if added is None else added
        self._tokenizer.check_length(text)
        if body.parse_special:
            return self._tokenizer.encode(text, is_added)
        return [*(self._tokenizer.encode("") if is_added else []), *self._tokenizer.encode_literal(text)]


class DetokenizeEndpoint(TokensEndpoint[DetokenizeBody]):
    """Tokens in, their text out, special tokens with it."""

    body_type = DetokenizeBody

    def _answer(self, body: DetokenizeBody) -> Json:
        vocab_size = self._engine.engine.package.manifest.vocab_size
        if beyond := next((each for each in body.tokens if each >= vocab_size), None):
            raise ApiError(400, f"'tokens' has {beyond}, but ids here are below {vocab_size}: correct it.", "tokens")
        text = self._tokenizer.spelled(body.tokens)
        return {"content": text, "prompt": text}


def _piece(token: bytes) -> object:
    """A token's text, or the bytes of a part of a character, as llama.cpp has them."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return list(token)

"""Tokens that calls of declared tools allow next."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from reader_edge_runtime.text.calls.call_form import CallForm
from reader_edge_runtime.text.calls.call_reader import MAX_CALLS, Call, CallReader
from reader_edge_runtime.text.calls.call_schema import CallSchema, Values
from reader_edge_runtime.text.conversation import Conversation, Message
from reader_edge_runtime.text.text_stream import StreamDecoder
from reader_edge_runtime.text.tokenizer import Tokenizer

_MAX_ARGUMENTS = 4096  # characters of a call in a message that are read
_BEFORE = 8  # characters before a path that tell how it begins


class CallGuide:
    """Follows one answer to a conversation that declares tools, and tells what calls allow next.

    calls: those of the conversation and the answer so far: the tool, and values by argument in raw JSON.
    """

    def __init__(self, conversation: Conversation, prompt_token_ids: Sequence[int], tokenizer: Tokenizer) -> None:
        form = _guessed(tokenizer.call_form)
        schema = CallSchema(conversation.tools, form)
        self._reader = CallReader(schema, form)
        self._earlier = _earlier_calls(conversation.messages, schema, form)
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer, prompt_token_ids, tokenizer.special_in(form.texts))
        self._num_read = 0
        self._last = ""  # the answer's last characters

    @property
    def calls(self) -> list[Call]:
        return [*self._earlier, *self._reader.calls]

    def paths(self, answer: Sequence[int], past: Mapping[str, Values]) -> list[tuple[list[int], float]]:
        """Tokens that may come next, and how likely each path begins.

        answer: token ids so far. past: values that arguments had, by tool. Raises TokenizerError.
        """
        for token_id in answer[self._num_read :]:
            text = self._decoder.push(token_id)
            self._reader.read(text)
            self._last = (self._last + text)[-_BEFORE:]
        self._num_read = len(answer)
        likeliest = [] if self._decoder.is_holding else self._reader.continuations(past)
        if not likeliest:
            return []
        before, *encoded = self._tokenizer.encode_batch([self._last, *(self._last + text for text, _ in likeliest)])
        return [(self._behind(before, ids, text), p) for ids, (text, p) in zip(encoded, likeliest, strict=True)]

    def _behind(self, before: list[int], token_ids: list[int], text: str) -> list[int]:
        """The tokens of a text behind the answer, whose last token has ended, whatever the two would be as one."""
        if token_ids[: len(before)] == before:
            return token_ids[len(before) :]
        return self._tokenizer.encode(text, adds_special_tokens=False)


def _guessed(form: CallForm) -> CallForm:
    """What stands before the first call belongs to it."""
    return replace(form, begin=form.opening + form.begin, end=form.end or form.closing, opening="")


def _earlier_calls(messages: Sequence[Message], schema: CallSchema, form: CallForm) -> list[Call]:
    """Of declared tools in messages of the assistant; the last of many."""
    said = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    reader = CallReader(schema, CallForm("", "", form.arguments, form.name))
    for function in said[-MAX_CALLS:]:
        arguments = function["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        if len(text) <= _MAX_ARGUMENTS:
            reader.read(json.dumps({form.name: function["name"], form.arguments: None})[: -len("null}")] + text + "}")
    return reader.calls

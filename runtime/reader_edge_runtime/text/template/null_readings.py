"""What a template is given for a member of a message that is null, above all the content beside calls.

Templates differ: Qwen 3's wants a text there, GLM's writes "None" for null, Kimi's and DeepSeek's ask whether it is
null. transformers 5 leaves such members out; its earlier versions hand them on.
"""

import re
from collections.abc import Iterator, Sequence

from reader_edge_runtime.text.conversation import Message

_ASKS_FOR_NULL = re.compile(r"""content['"\]]*\s*(?:is\s+(?:not\s+)?none\b|[!=]=\s*none\b)""", re.IGNORECASE)


def null_readings(messages: Sequence[Message], source: str) -> Iterator[Sequence[Message]]:
    """Ways to give these messages to a template, of which the first that it renders is right."""
    left_out = [{key: value for key, value in each.items() if value is not None} for each in messages]
    if all("content" in each for each in left_out):  # nothing that templates stumble over but thoughts alone
        yield left_out
        with_thoughts = [_with_thought(each) for each in left_out]
        yield from [with_thoughts] if with_thoughts != left_out else []
        return
    as_they_are = [dict(each) for each in messages]
    empty = [{**each, "content": each.get("content", "")} for each in left_out]
    is_null_wanted = _ASKS_FOR_NULL.search(source) is not None
    yield from (as_they_are, left_out, empty) if is_null_wanted else (left_out, empty, as_they_are)
    yield [_with_thought(each) for each in empty]


def _with_thought(message: Message) -> Message:
    """A message that says nothing but what it thinks, as Mistral's templates take it: in a part."""
    thought = message.get("reasoning_content")
    if message["content"] or message.get("tool_calls") or not thought:
        return message
    return {**message, "content": [{"type": "thinking", "thinking": thought}]}

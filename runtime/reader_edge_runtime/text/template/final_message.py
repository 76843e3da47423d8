"""A conversation whose last message the answer continues, as transformers' `continue_final_message` has it.

A template closes every message. So the last text gets a tag behind it, and what was rendered ends before the tag.
"""

from collections.abc import Sequence

from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.text.conversation import Message

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


def tag_final_text(messages: Sequence[Message]) -> list[Message]:
    """The messages with a tag behind the last one's text. Raises PromptError where it has no text."""
    *before, last = messages
    content = last.get("content")
    if isinstance(content, str):
        return [*before, {**last, "content": content + _TAG}]
    if content:
        *parts, end = content
        return [*before, {**last, "content": [*parts, {**end, "text": end["text"] + _TAG}]}]
    raise PromptError("The last message has no text to continue: give it a 'content', or ask for a new message.")


def cut_at_tag(rendered: str) -> str:
    """What was rendered before the tag; without the space before it, where the template trims texts."""
    place = rendered.rfind(_TAG.rstrip())
    if place < 0:
        raise PromptError(
            "The model's chat template leaves the last message's text out, so no answer can go on with it: "
            "ask for a new message."
        )
    is_trimmed = not rendered.startswith(_TAG, place)
    return rendered[:place].rstrip() if is_trimmed else rendered[:place]

"""Images in conversations: from where messages have them, and the text that stands for them once they are rendered."""

import binascii
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from reader_edge_runtime.errors import ConversationError, PromptError
from reader_edge_runtime.images.decode import MAX_BYTES, ImageSource, read_image
from reader_edge_runtime.text.conversation import IMAGE_PART, Conversation, Encodable, Message
from reader_edge_runtime.untrusted.user_input import short_repr

MAX_IMAGES = 256


def with_images(prompt: Encodable, images: Sequence[ImageSource]) -> Conversation:
    """A prompt with images that its messages have parts for, or that stand before what the user says last.

    Raises PromptError for what is no conversation.
    """
    _check_list(images)
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if isinstance(prompt, list | tuple) and (not prompt or isinstance(prompt[0], Mapping)):
        prompt = Conversation(cast(Sequence[Message], prompt))
    if not isinstance(prompt, Conversation):
        raise PromptError(
            f"Images reach a model with messages, not with {short_repr(prompt)}: give a text or messages."
        )
    if not isinstance(prompt.messages, list | tuple):
        raise PromptError(f"messages is {short_repr(prompt.messages)}, but must be a list of messages.")
    _check_list(prompt.images)
    return replace(prompt, images=[*prompt.images, *images])


def holds_images(prompt: Encodable) -> bool:
    """Whether a prompt has images, or parts that say so."""
    if isinstance(prompt, Conversation):
        return bool(prompt.images) or holds_images(prompt.messages)
    is_chat = isinstance(prompt, list | tuple) and bool(prompt) and isinstance(prompt[0], Mapping)
    return is_chat and any(_is_image(part) for each in cast(Sequence[Message], prompt) for part in _parts(each))


def with_neutral_parts(prompt: Encodable) -> Conversation:
    """The conversation with all its images in `images`, in the order of the parts that are left of them.

    Parts are {"type": "image_url", "image_url": {"url": "data:..."}}, as OpenAI writes them, {"type": "image", "image":
    ...} of bytes, a PIL image or a Path, or {"type": "image"} for the next one of `images`. Paths are no texts: those
    of a message may come from anywhere. Raises PromptError.
    """
    given = with_images(prompt, ())
    left, found = list(given.images), cast(list[ImageSource], [])
    messages = list(given.messages)
    if left and not any(_is_image(part) for each in messages for part in _parts(each)):
        messages = _with_leading_parts(messages, len(left))
    for number, message in enumerate(messages):
        if not any(map(_is_image, _parts(message))):
            continue
        parts = []
        for place, part in enumerate(message["content"]):
            if _is_image(part):
                found.append(_source(part, left, f"messages[{number}].content[{place}]"))
                part = IMAGE_PART
            parts.append(part)
        messages[number] = {**message, "content": parts}
    if left:
        raise PromptError(f"{len(left)} of the images have no part in the messages: give as many as there are parts.")
    if len(found) > MAX_IMAGES:
        raise PromptError(f"The prompt has {len(found)} images, but may have {MAX_IMAGES} at most: leave some out.")
    return replace(given, messages=messages, images=found)


def with_own_parts(chat: Conversation, as_json: bool = False) -> list[Message]:
    """The messages of what `with_neutral_parts` returned, with each image in its part. as_json: as data URLs.

    Raises ImageError for a path that cannot be read, PromptError for a PIL image, which JSON has no form for.
    """
    images = iter([_json_part(each) if as_json else {"type": "image", "image": each} for each in chat.images])
    return [
        {**message, "content": [next(images) if _is_image(part) else part for part in parts]}
        if (parts := _parts(message))
        else message
        for message in chat.messages
    ]


def _json_part(image: ImageSource) -> dict[str, Any]:
    data = read_image(Path(image)) if isinstance(image, str | os.PathLike) else image
    if not isinstance(data, bytes | bytearray | memoryview):
        raise PromptError(f"An image that is kept or sent is a file, not {short_repr(data)}: give its path or bytes.")
    url = f"data:;base64,{binascii.b2a_base64(data, newline=False).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def check_sees(prompt: Encodable) -> None:
    """Raise PromptError for images that were given to a model of texts beside its prompt."""
    if isinstance(prompt, Conversation) and prompt.images:
        raise PromptError("This model reads texts alone: leave the images out.")


def _check_list(images: object) -> None:
    """Raise PromptError."""
    if isinstance(images, str | bytes) or not isinstance(images, Sequence):
        raise PromptError(f"images is {short_repr(images)}, but must be a list of paths, bytes or PIL images.")


def _parts(message: object) -> Sequence[object]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list | tuple) else ()


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("image", "image_url")


def _with_leading_parts(messages: list[Message], num_images: int) -> list[Message]:
    """Parts for images before what the user says last. What is no message is refused later, with others' faults."""
    users = [n for n, each in enumerate(messages) if isinstance(each, Mapping) and each.get("role") == "user"]
    last = users[-1] if users else None
    if last is None:
        raise PromptError("The images have no message of the user to stand in: give one.")
    content = messages[last].get("content")
    parts = list(content or ()) if isinstance(content, list | tuple | None) else [{"type": "text", "text": content}]
    messages[last] = {**messages[last], "content": [*[IMAGE_PART] * num_images, *parts]}
    return messages


def _source(part: Mapping[str, Any], left: list[ImageSource], place: str) -> ImageSource:
    kind = str(part["type"])
    further = next((name for name in part if name not in ("type", kind, "cache_control")), None)
    if further is not None:
        raise ConversationError(f"There is no field '{place}.{further!s:.80}': leave it out.", place)
    value = part.get(kind)
    if kind == "image_url":
        return bytes_of_url(value.get("url") if isinstance(value, Mapping) else value, f"{place}.image_url")
    if value is None and left:
        return left.pop(0)
    if isinstance(value, str) or value is None:
        problem = "is missing" if value is None else f"is {short_repr(value)}"
        raise ConversationError(f"'{place}.image' {problem}, but must be bytes, a Path or a PIL image.", place)
    return cast(ImageSource, value)


def bytes_of_url(url: object, place: str) -> bytes:
    """What a data URL holds. place: of it, for a refusal. Raises ConversationError."""
    head, _, body = url.partition(",") if isinstance(url, str) else ("", "", "")
    if (head[:5].lower(), head[-7:].lower()) != ("data:", ";base64"):
        rest = "but nothing is fetched from there: give the image as 'data:image/png;base64,...'."
        raise ConversationError(f"'{place}' is {short_repr(url)}, {rest}", place, f"'{place}' is no data URL, {rest}")
    return bytes_of_base64(body, place)


def bytes_of_base64(text: str, place: str) -> bytes:
    """The content of an image's file, whose lines may have ends. Raises ConversationError."""
    if len(text) > MAX_BYTES * 4 // 3 + MAX_BYTES // 32:
        sentence = (
            f"'{place}' has {len(text)} characters, more than an image of {MAX_BYTES >> 20} MiB: give a smaller one."
        )
        raise ConversationError(sentence, place, sentence)
    try:
        return binascii.a2b_base64(text.replace("\n", ""), strict_mode=True)
    except ValueError as error:  # also of characters that are not ASCII
        sentence = f"'{place}' is no base64 ({error}): give the bytes of an image's file so."
        raise ConversationError(sentence, place, f"'{place}' is no base64.") from None


@dataclass(frozen=True, slots=True)
class ImageTexts:
    """mark: what a chat template writes for an image. texts: what comes in its place, of each image in order."""

    mark: str
    texts: Sequence[str]

    def expand(self, rendered: str, masked: str) -> tuple[str, str]:
        """Put the texts in place of marks, in a text and in another of equal length that has the marks that count.

        Raises PromptError where there are not as many marks as images.
        """
        places = [found.start() for found in re.finditer(re.escape(self.mark), masked)]
        if len(places) < len(self.texts):
            raise PromptError(
                f"The model's chat template shows {len(places)} of the messages' {len(self.texts)} images: put them "
                "into messages of the user."
            )
        if len(places) > len(self.texts):
            raise PromptError(
                f"The messages have {len(places)} places for images ({self.mark!r} in their text), and "
                f"{len(self.texts)} came: leave it out of what you write."
            )
        return "".join(self._pieces(rendered, places)), "".join(self._pieces(masked, places))

    def _pieces(self, text: str, places: Sequence[int]) -> Iterator[str]:
        end = 0
        for place, image in zip(places, self.texts, strict=True):
            yield text[end:place]
            yield image
            end = place + len(self.mark)
        yield text[end:]

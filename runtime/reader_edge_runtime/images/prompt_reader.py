"""Prompts as a model reads them: token ids, and the images that some of these stand for."""

from collections.abc import Sequence
from typing import NamedTuple

from reader_edge_runtime.errors import PromptError, PromptTooLongError
from reader_edge_runtime.images.decode import ImageSource
from reader_edge_runtime.images.image_encoder import ImageEncoder, SeenImage
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.image_parts import ImageTexts, holds_images, with_neutral_parts
from reader_edge_runtime.text.tokenizer import Tokenizer

_MOST_PIXELS = 200_000_000  # of a prompt's images


class ReadPrompt(NamedTuple):
    """prompt: as it was given, or with its images in one place. token_ids: with the vocabulary's id for an image at
    each of its tokens. text_ids: without these."""

    prompt: Encodable
    token_ids: list[int]
    text_ids: list[int]
    images: tuple[SeenImage, ...] = ()


class PromptReader:
    """encoder: of a model that sees images; None of one that does not."""

    def __init__(self, tokenizer: Tokenizer, max_context: int, encoder: ImageEncoder | None) -> None:
        self._tokenizer = tokenizer
        self._max_context = max_context
        self._encoder = encoder

    def read(self, prompt: Encodable, salt: str = "") -> ReadPrompt:
        """Encode a prompt; of images the headers are read, and no tower runs. salt: of its request.

        Raises PromptError, or InstallationError for images without Pillow.
        """
        encoder = self._encoder
        if encoder is None or not holds_images(prompt):
            token_ids = self._tokenizer.encode_prompt(prompt)
            if encoder is not None and encoder.part.token_id in token_ids:
                mark = encoder.part.rules.placeholder
                raise PromptError(f"The prompt spells {mark!r}, for which an image must come: leave it out.")
            return ReadPrompt(prompt, token_ids, token_ids)
        chat, images = with_neutral_parts(prompt), list[SeenImage]()
        try:
            self._open(chat.images, images, encoder, salt)
            texts = ImageTexts(encoder.part.rules.template_mark, [image.text for image in images])
            token_ids = self._tokenizer.encode_chat(chat, texts)
        except BaseException:
            images.clear()  # files, which an error's traceback would hold as long as somebody holds the error
            raise
        text_ids = [token_id for token_id in token_ids if token_id != encoder.part.token_id]
        return ReadPrompt(chat, token_ids, text_ids, tuple(images))

    def _open(self, sources: Sequence[ImageSource], images: list[SeenImage], encoder: ImageEncoder, salt: str) -> None:
        """Append all of them. Raises PromptError for more than there may be."""
        num_tokens = num_pixels = 0
        for number, source in enumerate(sources, 1):
            name = "The image" if len(sources) == 1 else f"Image {number}"
            images.append(encoder.open(source, name, salt))
            num_tokens, num_pixels = num_tokens + images[-1].num_tokens, num_pixels + images[-1].num_pixels
            if num_pixels > _MOST_PIXELS:
                most = _MOST_PIXELS // 10**6
                raise PromptError(f"The images have more than {most} million pixels together: give smaller ones.")
            if num_tokens >= self._max_context:
                having = "The image has" if number == 1 else f"The first {number} of {len(sources)} images have"
                sentence = (
                    f"{having} {num_tokens} tokens, but the model's context of {self._max_context} must also hold the "
                    "text and the answer: give fewer or smaller images."
                )
                raise PromptTooLongError(sentence, num_tokens, self._max_context)

"""Text to token ids and back."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import cast

from tokenizers import Tokenizer as FastTokenizer

from reader_edge_runtime.errors import PromptError, PromptTooLongError, TokenizerError
from reader_edge_runtime.package.manifest import CHAT_TEMPLATE_NAME, TOKENIZER_NAME, TOOL_TEMPLATE_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.conversation import Conversation, Encodable, Message
from reader_edge_runtime.text.fill_in_middle import FIM_TOKENS, File, FillInMiddle
from reader_edge_runtime.text.image_parts import ImageTexts, check_sees
from reader_edge_runtime.text.literal_encoder import LiteralEncoder, LiteralText
from reader_edge_runtime.text.template.chat_template import ChatTemplate
from reader_edge_runtime.text.thinking import ThinkingTags
from reader_edge_runtime.text.tokenizer_file import TokenBytes, library_errors, read_tokenizer
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax
from reader_edge_runtime.untrusted.user_input import short_repr

_MAX_VOCAB_SIZE = 1 << 24


class Tokenizer:
    """The tokenizer of a package and, where the model has one, its chat template.

    max_context: tokens of a prompt at most; None for any number. is_text_literal: whether texts of conversations can
    hold no control token. vocab_size: one more than the highest token id.
    special_tokens: texts of the tokens that `decode` leaves out, by id.
    """

    def __init__(
        self,
        fast: FastTokenizer,
        chat_template: ChatTemplate | None = None,
        max_context: int | None = None,
        is_text_literal: bool = False,
    ) -> None:
        fast.no_truncation()
        fast.no_padding()
        vocabulary = fast.get_vocab()
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self._max_context, self._max_token = max_context, max(map(len, vocabulary), default=1)  # in characters
        self._fast = fast
        self._token_bytes = TokenBytes(fast)
        self._chat_template = chat_template
        self._literal = LiteralEncoder(fast, chat_template) if is_text_literal and chat_template else None
        added = fast.get_added_tokens_decoder()
        self.special_tokens = {token_id: token.content for token_id, token in added.items() if token.special}
        self._special_texts = frozenset(self.special_tokens.values())

    @classmethod
    def open(cls, package: ModelPackage, is_text_literal: bool = False) -> "Tokenizer":
        """Load a package's tokenizer. Raises TokenizerError when it is broken or does not fit the model."""
        manifest = package.manifest
        path = package.path(TOKENIZER_NAME)
        fast = read_tokenizer(path, "export the model again")
        template = _chat_template(package)
        tokenizer = cls(fast, template, manifest.max_context, is_text_literal)
        if tokenizer.vocab_size > manifest.vocab_size:
            raise TokenizerError(
                f"'{path}' has {tokenizer.vocab_size} tokens, the model {manifest.vocab_size}: "
                "it belongs to another model, export again."
            )
        return tokenizer

    @classmethod
    def from_file(cls, path: Path) -> "Tokenizer":
        """Load a tokenizer.json of any model, without a chat template. Raises TokenizerError."""
        tokenizer = cls(read_tokenizer(path, "give a model's tokenizer.json"))
        if tokenizer.vocab_size > _MAX_VOCAB_SIZE:
            raise TokenizerError(
                f"'{path}' has token id {tokenizer.vocab_size - 1}, but ids must be below {_MAX_VOCAB_SIZE}: "
                "give a model's tokenizer.json."
            )
        return tokenizer

    def fingerprint(self) -> str:
        """SHA-256 (hex) of everything that makes text into token ids and back.

        The content is hashed in the library's form, not the file, so it is equal for a model's own tokenizer.json and
        the one in its package. Truncation, padding and the addition of special tokens don't count.
        """
        fast = self._fast
        digest = hashlib.sha256()
        for part in (fast.normalizer, fast.pre_tokenizer, fast.decoder, fast.model):
            digest.update(hashlib.sha256(b"" if part is None else part.__getstate__()).digest())
        for token_id, token in sorted(fast.get_added_tokens_decoder().items()):
            digest.update(f"{token_id} {token!r}\n".encode())
        return digest.hexdigest()

    def to_json(self) -> str:
        """The tokenizer in the form of tokenizer.json."""
        return str(self._fast.to_str())

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    @property
    def chat_source(self) -> str:
        """The chat template; "" where the model has none."""
        return "" if self._chat_template is None else self._chat_template.source

    def encode(self, text: str, adds_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with the model's own start tokens unless requested otherwise. Raises PromptError."""
        if adds_special_tokens:
            self.check_length(text)
        with library_errors("The tokenizer cannot encode this text"):
            return list(self._fast.encode(text, add_special_tokens=adds_special_tokens).ids)

    def encode_literal(self, text: str) -> list[int]:
        """Token ids of a text that is never read as control tokens, without start tokens. Raises PromptError."""
        self.check_length(text)
        with library_errors("The tokenizer cannot encode this text"):
            return self._literal_text.encode(text)

    @cached_property
    def _literal_text(self) -> LiteralText:
        sources = () if self._chat_template is None else self._chat_template.sources
        return LiteralText(self._fast, (*sources, *FIM_TOKENS))

    @cached_property
    def fill_in_middle(self) -> FillInMiddle | None:
        """How the model fills in what stands between two texts; None where it has no tokens for it."""
        return FillInMiddle.of(self._fast)

    def encode_infill(
        self, prefix: str, suffix: str, files: Sequence[File] = (), max_tokens: int | None = None
    ) -> list[int]:
        """Token ids of the prompt for what stands between two texts. Raises PromptError.

        files, max_tokens: as of `FillInMiddle.prompt`.
        """
        form = self.fill_in_middle
        if form is None:
            raise PromptError("This model has no fill-in-the-middle tokens: serve one that has, as Qwen2.5-Coder.")
        if max_tokens is not None:  # what can never fit is not even encoded
            most = max_tokens * self._max_token
            prefix, suffix = prefix[max(len(prefix) - most, 0) :], suffix[:most]
            files = [(name[:most], text[:most]) for name, text in files]
        return form.prompt(self.encode_literal, prefix, suffix, files, max_tokens)

    def encode_prompt(self, prompt: Encodable) -> list[int]:
        """Token ids of a text, or of a conversation through the model's chat template; token ids as they are.

        Raises PromptError, also for a conversation with images, which `Engine.encode_prompt` reads.
        """
        if isinstance(prompt, str):
            return self.encode(prompt)
        if isinstance(prompt, Conversation):
            check_sees(prompt)
            return self.encode_chat(prompt)
        if not isinstance(prompt, list | tuple):
            raise PromptError(f"A prompt is a text or a list of messages, got {short_repr(prompt)}.")
        if not prompt:
            raise PromptError("The prompt is an empty list: give at least one message, or token id.")
        if len(prompt) > 1 and all(isinstance(each, str) for each in prompt):
            texts = short_repr(prompt)
            raise PromptError(f"A prompt is one text, not the {len(prompt)} of {texts}: use generate_batch.")
        if isinstance(prompt[0], Integral):
            return cast(list[int], list(prompt))  # checked when a request is made of them
        return self.encode_chat(Conversation(cast(Sequence[Message], prompt)))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where the text's characters stand that each token of `encode` was made of: begin and end, as the library
        tells them; (0, 0) of a token that was added to the text. Raises PromptError."""
        with library_errors("The tokenizer cannot encode this text"):
            return list(self._fast.encode(text).offsets)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of many texts, without special tokens, on all cores. Raises PromptError."""
        with library_errors("The tokenizer cannot encode these texts"):
            return [encoding.ids for encoding in self._fast.encode_batch_fast(list(texts), add_special_tokens=False)]

    @property
    def call_syntax(self) -> CallSyntax:
        """How the model writes calls of tools."""
        syntax = CallSyntax() if self._chat_template is None else self._chat_template.call_syntax
        return replace(syntax, special_tokens=tuple((text, token_id) for token_id, text in self.special_tokens.items()))

    @property
    def thinking_tags(self) -> ThinkingTags | None:
        """How the model writes what it thinks before it answers; None where its chat template knows of no thinking."""
        return None if self._chat_template is None else self._chat_template.thinking_tags

    def encode_chat(self, conversation: Conversation, images: ImageTexts | None = None) -> list[int]:
        """Token ids of a conversation, ready for the assistant's answer. images: its. Raises PromptError."""
        template = self._used_template()
        conversation = template.sound(conversation)
        text = masked = template.render_sound(conversation)
        self.check_length(text)
        with library_errors("The tokenizer cannot encode this text"):
            if self._literal is not None:
                text, masked = self._literal.render(conversation, text)
            if images is not None:
                text, masked = images.expand(text, masked)
                self.check_length(text)
            if self._literal is not None:
                return self._literal.encode(text, masked)
        return self.encode(text, adds_special_tokens=False)

    def render_chat(self, conversation: Conversation) -> str:
        """The text of a conversation, whose token ids `encode_chat` gives. Raises PromptError."""
        return self._used_template().render(conversation)

    def _used_template(self) -> ChatTemplate:
        if self._chat_template is None:
            raise PromptError("This model has no chat template: give a plain prompt instead of messages.")
        return self._chat_template

    def takes_chat(self, conversation: Conversation) -> bool:
        """Whether a conversation reaches the chat template as it is, and nothing of it is put differently."""
        return self._chat_template is not None and self._chat_template.takes(conversation)

    def check_length(self, text: str) -> None:
        """Refuse a prompt that cannot fit: the library would take minutes and gigabytes to find that out."""
        if self._max_context is not None and len(text) > self._max_context * self._max_token:
            sentence = (
                f"The prompt has {len(text)} characters, more than the {self._max_context * self._max_token} that the "
                "longest tokens could fill the model's context with: shorten the prompt."
            )
            raise PromptTooLongError(sentence, len(text) // self._max_token, self._max_context)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        try:
            return str(self._fast.decode(token_ids, skip_special_tokens=True))
        except BaseException:  # reported only then: this runs twice a token
            with library_errors("The tokenizer cannot decode the model's tokens"):
                raise

    def spelled(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens with it."""
        with library_errors("The tokenizer cannot decode these tokens"):
            return str(self._fast.decode(token_ids, skip_special_tokens=False))

    def special_in(self, texts: Sequence[str]) -> dict[int, str]:
        """The special tokens that texts hold, by id."""
        tokens = self.special_tokens.items()
        return {token_id: token for token_id, token in tokens if any(token in text for text in texts)}

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it; None where `decode` leaves it out, as special or unknown."""
        token: str | None = self._fast.id_to_token(token_id)
        return None if token in self._special_texts else token

    def token_bytes(self, token_id: int, is_first: bool = False) -> bytes:
        """The bytes that a token stands for, be they a part of a character; a special token's are its own text.

        Those of a text's tokens, one after the other, are the text in UTF-8. An id without a token has none.
        is_first: no token with a text comes before; there, some tokenizers leave a space out.
        """
        with library_errors("The tokenizer cannot decode the model's tokens"):
            return self._token_bytes.of(token_id, is_first)

    def every_token_bytes(self, num_tokens: int) -> list[bytes]:
        """`token_bytes` of all ids below num_tokens."""
        with library_errors("The tokenizer cannot decode its tokens"):
            return self._token_bytes.every(num_tokens)


def _chat_template(package: ModelPackage) -> ChatTemplate | None:
    manifest = package.manifest
    if CHAT_TEMPLATE_NAME not in manifest.files:
        return None
    special = manifest.special_tokens
    has_two = TOOL_TEMPLATE_NAME in manifest.files
    for_tools = ChatTemplate.open(package.path(TOOL_TEMPLATE_NAME), special) if has_two else None
    return ChatTemplate.open(package.path(CHAT_TEMPLATE_NAME), special, for_tools)

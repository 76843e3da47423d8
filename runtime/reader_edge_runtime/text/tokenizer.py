"""Text to token ids and back: the tokenizer, decoding as it streams, the chat template."""

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as FastTokenizer

from reader_edge_runtime.errors import PromptError, TokenizerError
from reader_edge_runtime.package.manifest import CHAT_TEMPLATE_NAME, TOKENIZER_NAME
from reader_edge_runtime.package.model_package import ModelPackage

Message = Mapping[str, str]

# A UTF-8 character has at most four bytes, so four tokens that end in half a character hold a broken one.
_MAX_HELD_TOKENS = 4
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """The tokenizer of a package and, where the model has one, its chat template."""

    def __init__(self, fast: FastTokenizer, chat_template: str | None, special_tokens: Mapping[str, str]) -> None:
        fast.no_truncation()
        fast.no_padding()
        self._fast = fast
        self._chat_template = chat_template
        self._special_tokens = special_tokens

    @classmethod
    def open(cls, package: ModelPackage) -> "Tokenizer":
        """Load a package's tokenizer. Raises TokenizerError when it is broken or does not fit the model."""
        path = package.path(TOKENIZER_NAME)
        fast = _read(path, "export the model again")
        manifest = package.manifest
        if fast.get_vocab_size() > manifest.vocab_size:
            raise TokenizerError(
                f"'{path}' has {fast.get_vocab_size()} tokens, the model {manifest.vocab_size}: "
                "it belongs to another model, export again."
            )
        template = None
        if CHAT_TEMPLATE_NAME in manifest.files:
            template = package.path(CHAT_TEMPLATE_NAME).read_text(encoding="utf-8")
        ids = {"bos_token": manifest.bos_token_id, "eos_token": next(iter(manifest.eos_token_ids), None)}
        special = {name: fast.id_to_token(i) or "" for name, i in ids.items() if i is not None}
        return cls(fast, template, special)

    @classmethod
    def from_file(cls, path: Path) -> "Tokenizer":
        """Load a tokenizer.json of any model, without a chat template. Raises TokenizerError."""
        return cls(_read(path, "give a model's tokenizer.json"), None, {})

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        return max(self._fast.get_vocab().values(), default=-1) + 1

    def fingerprint(self) -> str:
        """SHA-256 (hex) of everything that makes text into token ids and back.

        Equal for a model's own tokenizer.json and the one in its package, which the library wrote: the content is
        hashed in the library's form, not the file. What only adds special tokens, truncates or pads is left out.
        """
        fast = self._fast
        digest = hashlib.sha256()
        for part in (fast.normalizer, fast.pre_tokenizer, fast.decoder, fast.model):
            digest.update(hashlib.sha256(b"" if part is None else part.__getstate__()).digest())
        for token_id, token in sorted(fast.get_added_tokens_decoder().items()):
            digest.update(f"{token_id} {token!r}\n".encode())
        return digest.hexdigest()

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    def encode(self, text: str, adds_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with the model's own start tokens unless told otherwise."""
        try:
            return list(self._fast.encode(text, add_special_tokens=adds_special_tokens).ids)
        except (TypeError, UnicodeError):
            raise PromptError("The prompt is not valid Unicode text: it holds half of a surrogate pair.") from None

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of many texts, without special tokens, on all cores."""
        try:
            return [encoding.ids for encoding in self._fast.encode_batch_fast(list(texts), add_special_tokens=False)]
        except (TypeError, UnicodeError):
            raise PromptError("A text is not valid Unicode: it holds half of a surrogate pair.") from None

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's answer; messages have a role and a content."""
        if self._chat_template is None:
            raise PromptError("This model has no chat template: give a plain prompt instead of messages.")
        for message in messages:
            if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
                raise PromptError(f"A message needs a text 'role' and a text 'content', got {dict(message)!r:.100}.")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda pattern: datetime.datetime.now().strftime(pattern)
        try:
            text = environment.from_string(self._chat_template).render(
                messages=[dict(message) for message in messages], add_generation_prompt=True, **self._special_tokens
            )
        except (TemplateError, TypeError, ValueError, OverflowError) as error:
            raise PromptError(f"The model's chat template refuses these messages: {error}") from error
        return self.encode(text, adds_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return str(self._fast.decode(list(token_ids), skip_special_tokens=True))


def _read(path: Path, remedy: str) -> FastTokenizer:
    try:
        return FastTokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"'{path}' is not a readable tokenizer ({error}): {remedy}.") from error


def _refuse(message: str) -> None:
    raise TemplateError(message)


class StreamDecoder:
    """Text of an answer, token by token, never half a character.

    A token's text depends on its neighbours, so each is decoded behind the tokens that came out last, and held back
    while the text ends inside a character.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._shown = list(prompt_token_ids[-_MAX_HELD_TOKENS:])
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that is certain after one more token."""
        self._held.append(token_id)
        return self._release(is_end=len(self._held) >= _MAX_HELD_TOKENS)

    def finish(self) -> str:
        """The text still held back; half a character comes out as a replacement character."""
        return self._release(is_end=True) if self._held else ""

    def _release(self, is_end: bool) -> str:
        shown = self._tokenizer.decode(self._shown)
        text = self._tokenizer.decode(self._shown + self._held)
        if not is_end and (text.endswith(_REPLACEMENT) or len(text) <= len(shown)):
            return ""
        self._shown, self._held = self._held, []
        return text[len(shown) :]

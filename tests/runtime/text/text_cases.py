"""Small tokenizers of the two families, templates rendered in this process, and the day that recorded ones have."""

import json
from collections.abc import Mapping
from datetime import datetime, tzinfo

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from reader_edge_runtime.text.template.chat_template import ChatTemplate, TemplateProcess
from reader_edge_runtime.text.template.template_worker import reply_to
from reader_edge_runtime.text.tokenizer import Tokenizer


def byte_level_tokenizer() -> FastTokenizer:
    """One token a byte, and one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(["<end>"])
    return fast


def byte_fallback_tokenizer() -> FastTokenizer:
    """As Llama's: pieces with a space mark, bytes as a fallback, the first space stripped, and one special token."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefgh", "▁a", "ab"]
    fast = FastTokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [("▁", "a"), ("a", "b")], byte_fallback=True))
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast.add_special_tokens(["<end>"])
    return fast


def word_tokenizer() -> FastTokenizer:
    """As BERT's: words and ends of words, spaces put between them when decoding."""
    words = ["[UNK]", "don", "##t", "##s", ",", "it", "\ufffd", "'"]
    fast = FastTokenizer(models.WordPiece({word: i for i, word in enumerate(words)}))
    fast.decoder = decoders.WordPiece(cleanup=True)
    return fast


BYTE_LEVEL = Tokenizer(byte_level_tokenizer())
BYTE_FALLBACK = Tokenizer(byte_fallback_tokenizer())
WORDS = Tokenizer(word_tokenizer())


SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class HereProcess(TemplateProcess):
    """No process at all."""

    def ask(self, request: str) -> dict[str, str]:
        return reply_to(json.loads(request))


def template(source: str, special_tokens: Mapping[str, str] = SPECIAL_TOKENS) -> ChatTemplate:
    return ChatTemplate(source, special_tokens, HereProcess())


class OneDay(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "OneDay":
        return cls(2026, 7, 26, 12, 30, tzinfo=tz)

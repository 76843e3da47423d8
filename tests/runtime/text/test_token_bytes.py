"""The bytes of tokens: one after the other, they are the text in UTF-8, also where a token is a part of a character."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as FastTokenizer

from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.runtime.text.small_tokenizers import (
    BYTE_FALLBACK,
    BYTE_LEVEL,
    WORDS,
    byte_fallback_tokenizer,
    byte_level_tokenizer,
)


def with_added_tokens(fast: FastTokenizer) -> Tokenizer:
    """Tags as plain vocabulary, as Gemma and Qwen have them, and one beyond ASCII."""
    fast.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in ("<b>", "<tool_call>", "\n\n", "中")]
    )
    return Tokenizer(fast)


def metaspace_tokenizer() -> Tokenizer:
    """As T5's and older Llama's: words with a space mark, whose decoder drops the first one."""
    pieces = ["<unk>", "▁", "▁the", "▁cat", "s", "é", "▁▁"]
    fast = FastTokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, "<unk>"))
    fast.decoder = decoders.Metaspace(prepend_scheme="first")
    return Tokenizer(fast)


def suffix_tokenizer() -> Tokenizer:
    """As GPT-1's: ends of words bear a mark that becomes a space."""
    fast = FastTokenizer(models.WordLevel({"lo": 0, "low</w>": 1, "er</w>": 2, "<unk>": 3}, "<unk>"))
    fast.decoder = decoders.BPEDecoder(suffix="</w>")
    return Tokenizer(fast)


TOKENIZERS = {
    "byte level": BYTE_LEVEL,
    "byte level, added tokens": with_added_tokens(byte_level_tokenizer()),
    "byte fallback": BYTE_FALLBACK,
    "byte fallback, added tokens": with_added_tokens(byte_fallback_tokenizer()),
    "metaspace": metaspace_tokenizer(),
    "words": WORDS,
    "demo": Tokenizer.from_file(Path(__file__).parents[3] / "models" / "demo" / "package" / "tokenizer.json"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_the_bytes_of_tokens_one_after_the_other_are_their_text(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    drawn = data.draw(st.lists(st.integers(0, tokenizer.vocab_size), max_size=20))
    token_ids = [token_id for token_id in drawn if tokenizer.token(token_id) is not None]  # special ones have no text
    joined = b"".join(tokenizer.token_bytes(token_id, is_first=i == 0) for i, token_id in enumerate(token_ids))
    try:
        text = joined.decode()
    except UnicodeDecodeError:
        return  # half a character, which no text has
    assert text == tokenizer.decode(token_ids)


@pytest.mark.parametrize("name", ["byte level", "byte level, added tokens", "byte fallback", "demo"])
@given(text=st.text(" abé中🙂é‍\n<b>", max_size=20))
def test_the_bytes_of_any_text_s_tokens_are_that_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    token_ids = tokenizer.encode(text.replace(" ", "▁") if "fallback" in name else text, adds_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, token_ids)).decode() == text


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
def test_every_byte_has_a_token_that_stands_for_it(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    found = {tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)}
    assert {bytes([byte]) for byte in range(256)} <= found


def test_a_word_s_space_belongs_to_it_but_where_the_text_begins() -> None:
    token_id = BYTE_FALLBACK.encode("▁a", adds_special_tokens=False)[0]
    assert BYTE_FALLBACK.token_bytes(token_id) == b" a"
    assert BYTE_FALLBACK.token_bytes(token_id, is_first=True) == b"a"
    tokenizer = metaspace_tokenizer()
    assert [tokenizer.token_bytes(token_id) for token_id in range(1, 6)] == [b" ", b" the", b" cat", b"s", b"\xc3\xa9"]


def test_the_end_of_a_word_bears_the_space_behind_it() -> None:
    assert [suffix_tokenizer().token_bytes(token_id) for token_id in range(3)] == [b"lo", b"low ", b"er "]


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte level", "byte fallback"])
def test_a_special_token_s_bytes_are_its_text_and_an_unknown_id_has_none(tokenizer: Tokenizer) -> None:
    end = tokenizer.vocab_size - 1
    assert tokenizer.token(end) is None
    assert tokenizer.token_bytes(end) == b"<end>"
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""

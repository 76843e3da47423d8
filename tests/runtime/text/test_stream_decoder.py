"""Streamed text is what decoding gives, and no piece of it ends inside a character."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader_edge_runtime.text.text_stream import StreamDecoder
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.runtime.text.small_tokenizers import BYTE_FALLBACK, BYTE_LEVEL, WORDS

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
DEMO = Tokenizer.from_file(Path(__file__).parents[3] / "models" / "demo" / "package" / "tokenizer.json")
TOKENIZERS = {"byte level": BYTE_LEVEL, "byte fallback": BYTE_FALLBACK, "words": WORDS, "demo": DEMO}

# Characters of one to four bytes, a genuine replacement character, combining marks, spaces at every place.
texts = st.text(f" abé中🙂e\u0301\u200d\n▁{REPLACEMENT}", max_size=20)


def streamed(tokenizer: Tokenizer, prompt: list[int], token_ids: list[int]) -> list[str]:
    decoder = StreamDecoder(tokenizer, prompt)
    return [*(decoder.push(token_id) for token_id in token_ids), decoder.finish()]


def behind(tokenizer: Tokenizer, prompt: list[int], token_ids: list[int]) -> str:
    """What decoding all at once gives behind the prompt."""
    return tokenizer.decode(prompt + token_ids)[len(tokenizer.decode(prompt)) :]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_any_tokens_stream_as_they_decode(name: str, data: st.DataObject) -> None:
    """Broken UTF-8, special tokens and unknown ids included."""
    tokenizer = TOKENIZERS[name]
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size), max_size=40))
    # A prompt is text; one that ends in bytes makes a run with those of the answer.
    prompt = tokenizer.encode(data.draw(st.sampled_from(["it", "a 🙂", f"a{REPLACEMENT}"])))
    assert "".join(streamed(tokenizer, prompt, token_ids)) == behind(tokenizer, prompt, token_ids)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, DEMO], ids=["byte level", "demo"])
@given(text=texts, prompt=texts)
def test_any_text_streams_whole_characters(tokenizer: Tokenizer, text: str, prompt: str) -> None:
    pieces = streamed(tokenizer, tokenizer.encode(prompt), tokenizer.encode(text))
    assert "".join(pieces) == text
    assert REPLACEMENT in text or all(REPLACEMENT not in piece for piece in pieces)


@given(texts, texts)
def test_any_text_streams_from_a_byte_fallback_vocabulary(text: str, prompt: str) -> None:
    prompt_ids, token_ids = (BYTE_FALLBACK.encode(each.replace(" ", "▁")) for each in (f"a{prompt}", text))
    assert "".join(streamed(BYTE_FALLBACK, prompt_ids, token_ids)) == text.replace("▁", " ")


def test_text_comes_out_as_soon_as_it_is_certain() -> None:
    token_ids = BYTE_LEVEL.encode(f"aé{REPLACEMENT}bc")
    assert streamed(BYTE_LEVEL, [], token_ids) == ["a", "", "é", "", "", "", f"{REPLACEMENT}b", "c", ""]


def test_endless_broken_characters_are_decoded_but_once(monkeypatch: pytest.MonkeyPatch) -> None:
    num_decoded = 0
    decode = Tokenizer.decode

    def count(self: Tokenizer, token_ids: list[int]) -> str:
        nonlocal num_decoded
        num_decoded += len(token_ids)
        return decode(self, token_ids)

    continuation = BYTE_LEVEL.encode("é")[1:]
    monkeypatch.setattr(Tokenizer, "decode", count)
    assert "".join(streamed(BYTE_LEVEL, [], continuation * 1000)) == REPLACEMENT * 1000
    assert num_decoded < 6000

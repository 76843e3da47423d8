"""Streamed text is what decoding gives, in whole characters, and never shows part of a stop string."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader_edge_runtime.text.text_stream import StreamDecoder, TextStream
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.runtime.text.text_cases import (
    BYTE_FALLBACK,
    BYTE_LEVEL,
    WORDS,
    byte_fallback_tokenizer,
    byte_level_tokenizer,
)

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


def test_text_comes_out_as_soon_as_no_character_or_stop_can_change_it() -> None:
    token_ids = BYTE_LEVEL.encode(f"aé{REPLACEMENT}bc")
    assert streamed(BYTE_LEVEL, [], token_ids) == ["a", "", "é", "", "", "", f"{REPLACEMENT}b", "c", ""]
    stream = TextStream(BYTE_LEVEL, [], ["END"])
    shown = []
    for token_id in BYTE_LEVEL.encode("xEENx"):
        stream.push(token_id)
        shown.append(stream.take())
    assert shown == ["x", "", "E", "", "ENx"]


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


SPECIAL = ("<|1|>", "<|2|>")


def with_special_tokens(name: str) -> Tokenizer:
    fast = byte_level_tokenizer() if name == "byte level" else byte_fallback_tokenizer()
    fast.add_special_tokens(list(SPECIAL))
    return Tokenizer(fast)


SPECIAL_TOKENIZERS = {name: with_special_tokens(name) for name in ("byte level", "byte fallback")}


def streamed_until(tokenizer: Tokenizer, token_ids: list[int], stop: list[str]) -> tuple[str, int | None]:
    """The text, and how many tokens it took until a stop ended it."""
    stream = TextStream(tokenizer, tokenizer.encode("x", adds_special_tokens=False), stop)
    text = ""
    for number, token_id in enumerate(token_ids, start=1):
        is_stopped = stream.push(token_id)
        text += stream.take()
        if is_stopped:
            stream.finish()
            return text + stream.take(), number
    stream.finish()
    return text + stream.take(), None


@pytest.mark.parametrize("name", SPECIAL_TOKENIZERS)
@given(
    parts=st.lists(st.sampled_from(["a", "b", "c", "\n", *SPECIAL]), max_size=25),
    stops=st.lists(
        st.lists(st.sampled_from(["a", "b", "\n", *SPECIAL]), min_size=1, max_size=3).map("".join), max_size=3
    ),
)
def test_stops_may_name_special_tokens_which_the_text_leaves_out(name: str, parts: list[str], stops: list[str]) -> None:
    """Against a search for each stop after each token, in the text with special tokens and in the text without."""
    tokenizer = SPECIAL_TOKENIZERS[name]
    token_ids = [tokenizer.encode(part, adds_special_tokens=False)[-1] for part in parts]
    wanted: tuple[str, int | None] = ("".join(part for part in parts if part not in SPECIAL), None)
    for number in range(1, len(parts) + 1):
        whole = "".join(parts[:number])
        shown = "".join(part for part in parts[:number] if part not in SPECIAL)
        ends = [len(without_special(whole[: whole.find(stop)])) for stop in stops if stop in whole]
        ends += [shown.find(stop) for stop in stops if stop in shown]
        if ends:
            wanted = shown[: min(ends)], number
            break
    assert streamed_until(tokenizer, token_ids, stops) == wanted


def without_special(text: str) -> str:
    for token in SPECIAL:
        text = text.replace(token, "")
    return text


def test_text_before_a_special_token_that_may_end_it_is_held_back_until_that_is_certain() -> None:
    tokenizer = SPECIAL_TOKENIZERS["byte level"]
    stream = TextStream(tokenizer, [], ["x<|1|>y"])
    shown = []
    for token_id in tokenizer.encode("wx<|1|>zx<|2|>x<|1|>y", adds_special_tokens=False):
        is_stopped = stream.push(token_id)
        shown.append(stream.take())
    # "<|1|>" may come as plain text too, so "x" is held behind "<|2|>"
    assert shown == ["w", "", "", "xz", "", "", "x", "", ""]
    assert is_stopped


@pytest.mark.parametrize("stop", ["\n", "\n\n", "a\n"])
def test_a_stop_that_ends_in_a_byte_token_ends_the_answer_at_that_token(stop: str) -> None:
    """Runs of byte tokens are held back, since a bad byte would spoil all of them, but not beyond a stop."""
    token_ids = BYTE_FALLBACK.encode("ab", adds_special_tokens=False)[-1:]
    token_ids += [BYTE_FALLBACK.encode(f"a{character}", adds_special_tokens=False)[-1] for character in "c\n\n"]
    a = BYTE_FALLBACK.encode("a", adds_special_tokens=False)[-1:]
    text, num_tokens = streamed_until(BYTE_FALLBACK, [*a, *token_ids[2:]], [stop])
    assert (text, num_tokens) == {"\n": ("a", 2), "\n\n": ("a", 3), "a\n": ("", 2)}[stop]


def test_stops_are_found_in_plain_text_and_half_characters_are_none() -> None:
    tokenizer = SPECIAL_TOKENIZERS["byte level"]
    token_ids = [token_id for character in "ab<|1|>c" for token_id in tokenizer.encode(character)]
    assert streamed_until(tokenizer, token_ids, ["<|1|>"]) == ("ab", 7)
    tokenizer = SPECIAL_TOKENIZERS["byte level"]
    token_ids = tokenizer.encode("ab<|1|>c", adds_special_tokens=False)
    assert streamed_until(tokenizer, token_ids, ["\ud800", "c<|1|>"]) == ("abc", None)

"""Text: what streams out is what decoding gives, never half a character, never part of a stop string."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from reader_edge_runtime.errors import PromptError, TokenizerError
from reader_edge_runtime.package.checksums import file_entry
from reader_edge_runtime.package.manifest_file import write_manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.text_stream import TextStream
from reader_edge_runtime.text.tokenizer import StreamDecoder, Tokenizer
from tests.fake_target import make_manifest

TEMPLATE = """{% for m in messages %}<{{ m.role }}>{{ m.content }}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def byte_level_tokenizer() -> FastTokenizer:
    """One token a byte, and one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(["<end>"])
    return fast


def byte_fallback_tokenizer() -> FastTokenizer:
    """As Llama's: pieces with a space mark, bytes as a fallback, the first space stripped."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefgh", "▁a", "ab"]
    fast = FastTokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [("▁", "a"), ("a", "b")], byte_fallback=True))
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return fast


BYTE_LEVEL = Tokenizer(byte_level_tokenizer(), TEMPLATE, {"eos_token": "<end>"})
BYTE_FALLBACK = Tokenizer(byte_fallback_tokenizer(), None, {})


def streamed(tokenizer: Tokenizer, prompt: list[int], token_ids: list[int]) -> list[str]:
    decoder = StreamDecoder(tokenizer, prompt)
    return [*(decoder.push(token_id) for token_id in token_ids), decoder.finish()]


@given(st.text(max_size=30), st.text(max_size=10))
def test_streamed_text_is_the_text_and_never_half_a_character(text: str, prompt: str) -> None:
    pieces = streamed(BYTE_LEVEL, BYTE_LEVEL.encode(prompt), BYTE_LEVEL.encode(text))
    assert "".join(pieces) == text
    assert "\N{REPLACEMENT CHARACTER}" in text or all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)


@given(st.text("ab ü🙂", max_size=20))
def test_spaces_between_tokens_survive_streaming(text: str) -> None:
    prompt = BYTE_FALLBACK.encode("▁a")
    marked = BYTE_FALLBACK.encode(text.replace(" ", "▁"))
    assert "".join(streamed(BYTE_FALLBACK, prompt, marked)) == text


@given(st.lists(st.integers(0, 266), max_size=40))
def test_any_tokens_stream_without_error(token_ids: list[int]) -> None:
    pieces = streamed(BYTE_FALLBACK, [], token_ids)
    assert all(isinstance(piece, str) for piece in pieces)


@given(st.text("abc", max_size=40), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    stream = TextStream(BYTE_LEVEL, [], stop)
    taken, is_stopped = "", False
    for token_id in BYTE_LEVEL.encode(text):
        is_stopped = stream.push(token_id)
        taken += stream.take()
        if is_stopped:
            break
    stream.finish()
    taken += stream.take()
    # The first to be complete ends the answer; of those complete at once, the one that began first.
    ends = sorted((text.find(s) + len(s), text.find(s)) for s in stop if s in text)
    wanted = text[: min(at for end, at in ends if end == ends[0][0])] if ends else text
    assert is_stopped == bool(ends)
    assert taken == wanted


def test_text_that_begins_a_stop_string_is_held_back_until_it_is_certain() -> None:
    stream = TextStream(BYTE_LEVEL, [], ["END"])
    shown = []
    for token_id in BYTE_LEVEL.encode("xEENx"):
        stream.push(token_id)
        shown.append(stream.take())
    assert shown == ["x", "", "E", "", "ENx"]


def test_chat_template_is_rendered_with_the_generation_prompt() -> None:
    token_ids = BYTE_LEVEL.encode_chat([{"role": "system", "content": "s"}, {"role": "user", "content": "ü"}])
    assert BYTE_LEVEL.decode(token_ids) == "<system>s\n<user>ü\n<assistant>"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception('no system role') }}",
        "{% for x in range(10**9) %}{% endfor %}",
        "{{ messages.append(1) }}",
        "{% bad",
    ],
)
def test_hostile_or_refusing_template_is_one_error(template: str) -> None:
    tokenizer = Tokenizer(byte_level_tokenizer(), template, {})
    with pytest.raises(PromptError, match="chat template refuses"):
        tokenizer.encode_chat([{"role": "user", "content": "x"}])


def test_messages_without_template_and_malformed_messages_are_refused() -> None:
    with pytest.raises(PromptError, match="no chat template"):
        BYTE_FALLBACK.encode_chat([{"role": "user", "content": "x"}])
    with pytest.raises(PromptError, match="needs a text 'role'"):
        BYTE_LEVEL.encode_chat([{"role": "user"}])


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(PromptError, match="surrogate"):
        BYTE_LEVEL.encode("\ud800")


def write_package(folder: Path, tokenizer_json: str, vocab_size: int) -> ModelPackage:
    (folder / "model.onnx").write_bytes(b"")
    (folder / "tokenizer.json").write_text(tokenizer_json)
    files = {name: file_entry(folder / name) for name in ("model.onnx", "tokenizer.json")}
    write_manifest(folder, replace(make_manifest(vocab_size), files=files))
    return ModelPackage.open(folder)


def test_broken_and_foreign_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="not a readable tokenizer"):
        Tokenizer.open(write_package(tmp_path, json.dumps({"model": 1}), 300))
    with pytest.raises(TokenizerError, match="has 257 tokens, the model 100"):
        Tokenizer.open(write_package(tmp_path, byte_level_tokenizer().to_str(), 100))
    assert Tokenizer.open(write_package(tmp_path, byte_level_tokenizer().to_str(), 257)).encode("a")

"""A tokenizer from outside: every way it can be wrong is one sentence; its tokens' bytes are their text."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from reader_edge_runtime.errors import PromptError, TokenizerError
from reader_edge_runtime.package.manifest import file_entry
from reader_edge_runtime.package.manifest_file import write_manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text import tokenizer_file as module
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.template.chat_template import ChatTemplate
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.text.tokenizer_file import library_errors
from tests.fake_target import make_manifest
from tests.runtime.text.text_cases import (
    BYTE_FALLBACK,
    BYTE_LEVEL,
    WORDS,
    byte_fallback_tokenizer,
    byte_level_tokenizer,
)

TEMPLATE = """{% for m in messages %}<{{ m.role }}>{{ m.content }}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def chat(text: str, system: str | None = None) -> Conversation:
    first = [] if system is None else [{"role": "system", "content": system}]
    return Conversation([*first, {"role": "user", "content": text}])


def test_a_conversation_becomes_the_token_ids_of_its_text() -> None:
    tokenizer = Tokenizer(byte_level_tokenizer(), ChatTemplate(TEMPLATE, {}))
    token_ids = tokenizer.encode_chat(chat("ü", "s"))
    assert tokenizer.decode(token_ids) == "<system>s\n<user>ü\n<assistant>"


def test_what_has_no_tokens_is_refused_and_special_ones_have_no_text() -> None:
    with pytest.raises(PromptError, match="surrogate"):
        BYTE_LEVEL.encode("\ud800")
    with pytest.raises(PromptError, match="surrogate"):
        BYTE_LEVEL.encode_batch(["\ud800"])
    with pytest.raises(PromptError, match="no chat template"):
        BYTE_LEVEL.encode_chat(chat("x"))
    assert [BYTE_LEVEL.token(token_id) for token_id in (256, 257)] == [None, None]
    assert BYTE_LEVEL.token(BYTE_LEVEL.encode("a")[0]) == "a"


def test_a_prompt_that_no_tokens_make_short_enough_is_refused_at_once() -> None:
    tokenizer = Tokenizer(byte_level_tokenizer(), ChatTemplate("{{ messages[0].content }}", {}), max_context=10)
    most = 10 * max(map(len, byte_level_tokenizer().get_vocab()))
    assert len(tokenizer.encode("a" * most)) > 10  # which the decoder refuses
    with pytest.raises(PromptError, match=rf"has {most + 1} characters, more than the {most} .*: shorten the prompt"):
        tokenizer.encode("a" * (most + 1))
    with pytest.raises(PromptError, match="shorten the prompt"):
        tokenizer.encode_chat(chat("a" * (most + 1)))


def write_package(folder: Path, tokenizer_json: str, vocab_size: int) -> ModelPackage:
    (folder / "model.onnx").write_bytes(b"")
    (folder / "tokenizer.json").write_text(tokenizer_json)
    files = {name: file_entry(folder / name) for name in ("model.onnx", "tokenizer.json")}
    write_manifest(folder, replace(make_manifest(vocab_size), files=files))
    return ModelPackage.open(folder)


def word_level(vocabulary: dict[str, int], **parts: object) -> str:
    """A tokenizer.json with one token a word and any other parts."""
    written: dict[str, Any] = json.loads(FastTokenizer(models.WordLevel({})).to_str())
    written["model"]["vocab"] = vocabulary  # the library itself would write every id up to the highest
    return json.dumps(written | parts)


def test_broken_and_foreign_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="not a readable tokenizer"):
        Tokenizer.open(write_package(tmp_path, json.dumps({"model": 1}), 300))
    with pytest.raises(TokenizerError, match="has 257 tokens, the model 100"):
        Tokenizer.open(write_package(tmp_path, byte_level_tokenizer().to_str(), 100))
    with pytest.raises(TokenizerError, match="has 4000000001 tokens, the model 100"):
        Tokenizer.open(write_package(tmp_path, word_level({"a": 4_000_000_000}), 100))
    assert Tokenizer.open(write_package(tmp_path, byte_level_tokenizer().to_str(), 257)).encode("a")


def test_ids_and_files_beyond_any_model_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(word_level({"a": 4_000_000_000}))
    with pytest.raises(TokenizerError, match="has token id 4000000000, but ids must be below 16777216"):
        Tokenizer.from_file(path)
    monkeypatch.setattr(module, "_MAX_FILE_BYTES", 10)
    with pytest.raises(TokenizerError, match="more than a tokenizer may have"):
        Tokenizer.from_file(path)


def _sequence(kind: str, *steps: dict[str, Any]) -> dict[str, object]:
    return {"type": "Sequence", kind: steps}


DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
FLOOD = DOUBLED | {"content": "a" * 20_000}
BETWEEN = {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "aaa"}
TWICE = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2, "pair": []}
CHARSMAP = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + b"a" * 50_000 + b"\0").decode()


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"normalizer": _sequence("normalizers", FLOOD, _sequence("normalizers", FLOOD))}, "4e[+]08 times .* 2 steps"),
        ({"normalizer": _sequence("normalizers", *[DOUBLED] * 14)}, "1.64e[+]04 times"),
        ({"normalizer": _sequence("normalizers", *[BETWEEN] * 7)}, "1.64e[+]04 times"),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 10_000_000}}, "1e[+]07 times"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}}, "5e[+]04 times"),
        ({"normalizer": _sequence("normalizers", *[{"type": "NFC"}] * 1000)}, "inf times .* in 1000 steps"),
        ({"decoder": _sequence("decoders", FLOOD, FLOOD)}, "4e[+]08 times"),
        ({"post_processor": _sequence("processors", *[TWICE | {"special_tokens": {}}] * 14)}, "1.64e[+]04 times"),
    ],
    ids=["flood", "many doublings", "regex", "prepend", "charsmap", "steps", "decoder", "template"],
)
def test_steps_that_could_fill_the_memory_are_refused(tmp_path: Path, parts: dict[str, object], words: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(word_level({"a": 0}, **parts))
    with pytest.raises(TokenizerError, match=rf"can make a text {words}"):
        Tokenizer.from_file(path)


@pytest.mark.parametrize("place", ["pre_tokenizer", "normalizer", "decoder"])
def test_a_regular_expression_of_a_tokenizer_has_a_bound(tmp_path: Path, place: str) -> None:
    fast, long = FastTokenizer(models.BPE()), Regex("x" * 20_000)
    if place == "pre_tokenizer":
        fast.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(long, "isolated")])
    elif place == "normalizer":
        fast.normalizer = normalizers.Sequence([normalizers.Replace(long, "")])
    else:
        fast.decoder = decoders.Replace(long, "")
    fast.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=r"has a regular expression of 20000 characters, more than the 16384"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")


def test_steps_of_the_richest_known_tokenizer_are_taken(tmp_path: Path) -> None:
    quotes = {"type": "Replace", "pattern": {"String": "``"}, "content": '"'}
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    charsmap = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + b"a" * 33 + b"\0").decode()
    precompiled = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    steps = quotes, quotes, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, precompiled, spaces
    path = tmp_path / "tokenizer.json"
    spaced = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    path.write_text(word_level({"a": 0}, normalizer=_sequence("normalizers", *steps), pre_tokenizer=spaced))
    assert Tokenizer.from_file(path).vocab_size == 1


EMPTY_CHUNKS = {"type": "FixedLength", "length": 0}
UNKNOWN_NAME = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], "pair": []}


@pytest.mark.parametrize(
    ("tokenizer_json", "reason"),
    [
        (word_level({"a": 0}), "Missing .UNK. token"),
        (word_level({"a": 0}, pre_tokenizer=EMPTY_CHUNKS), "chunk size must be non-zero"),
        (word_level({"b": 0}, post_processor=UNKNOWN_NAME | {"special_tokens": {}}), "no entry found for key"),
    ],
    ids=["no unknown token", "panic before", "panic behind"],
)
def test_what_the_library_fails_at_is_one_error(tmp_path: Path, tokenizer_json: str, reason: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json)
    tokenizer = Tokenizer.from_file(path)
    with pytest.raises(TokenizerError, match=rf"^The tokenizer cannot encode this text \(.*{reason}.*\): export"):
        tokenizer.encode("b")


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_who_ends_the_program_is_not_the_library(end: type[BaseException]) -> None:
    with pytest.raises(end), library_errors("The tokenizer cannot encode this text"):
        raise end


def test_a_panic_of_decoding_is_one_error() -> None:
    fast = FastTokenizer(models.WordLevel({"   ": 0}))
    fast.decoder = decoders.Strip(" ", 2, 2)
    with pytest.raises(TokenizerError, match="cannot decode the model's tokens"):
        Tokenizer(fast).decode([0])


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456789\n")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json' is a pointer of git-lfs .*`git lfs pull`\.$"):
        Tokenizer.from_file(path)


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


def test_a_word_bears_the_space_that_is_its() -> None:
    token_id = BYTE_FALLBACK.encode("▁a", adds_special_tokens=False)[0]
    assert BYTE_FALLBACK.token_bytes(token_id) == b" a"
    assert BYTE_FALLBACK.token_bytes(token_id, is_first=True) == b"a"
    tokenizer = metaspace_tokenizer()
    assert [tokenizer.token_bytes(token_id) for token_id in range(1, 6)] == [b" ", b" the", b" cat", b"s", b"\xc3\xa9"]
    assert [suffix_tokenizer().token_bytes(token_id) for token_id in range(3)] == [b"lo", b"low ", b"er "]


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte level", "byte fallback"])
def test_a_special_token_s_bytes_are_its_text_and_an_unknown_id_has_none(tokenizer: Tokenizer) -> None:
    end = tokenizer.vocab_size - 1
    assert tokenizer.token(end) is None
    assert tokenizer.token_bytes(end) == b"<end>"
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""

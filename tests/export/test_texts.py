"""The bundled texts: mixed, apart from each other, and token ids as the model would meet them."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from reader_edge_export.texts.text_set import MAX_SEQUENCE, TextSet
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.text.template.chat_template import ChatTemplate
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.conftest import ROOT

TURNS = "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"
CHAT = TURNS + "{% if add_generation_prompt %}<assistant>{% endif %}"
REFUSING = "{{ raise_exception('no place for an answer') }}"
CONVERSATION = [{"role": "user", "content": "cat sat"}, {"role": "assistant", "content": "the mat"}]
WORDS = {word: i for i, word in enumerate(["[BOS]", "the", "cat", "sat", "mat", "<", ">", "user", "assistant"])}


def words_tokenizer(template: str | None = None) -> Tokenizer:
    """A tokenizer of WORDS alone, which begins texts with [BOS]."""
    fast = FastTokenizer(WordLevel(WORDS))
    fast.pre_tokenizer = Whitespace()
    fast.post_processor = TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 0)])
    return Tokenizer(fast, ChatTemplate(template, {}) if template else None)


def words(sequences: list[list[int]]) -> list[str]:
    names = list(WORDS)
    return [" ".join(names[token_id] for token_id in token_ids) for token_ids in sequences]


def bundled_samples(name: str) -> list[dict[str, Any]]:
    text = resources.files("reader_edge_export.texts").joinpath(f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def contents(sample: dict[str, Any]) -> list[str]:
    return [message["content"] for message in sample.get("messages", [])] or [sample["text"]]


def test_a_document_begins_with_the_models_start_token() -> None:
    sequences = TextSet(["the cat", "sat"]).token_sequences(words_tokenizer(), 10, 100)
    assert words(sequences) == ["[BOS] the cat", "[BOS] sat"]


def test_a_conversation_is_the_prompt_of_its_template_and_then_the_answer() -> None:
    sequences = TextSet([CONVERSATION]).token_sequences(words_tokenizer(CHAT), 20, 100)
    assert words(sequences) == ["< user > cat sat < assistant > the mat"]


@pytest.mark.parametrize("template", [None, REFUSING])
def test_without_a_template_that_takes_it_a_conversation_is_plain_text(template: str | None) -> None:
    sequences = TextSet([CONVERSATION]).token_sequences(words_tokenizer(template), 20, 100)
    assert words(sequences) == ["[BOS] cat sat the mat"]


def test_each_text_and_all_together_are_cut_to_what_is_wanted() -> None:
    texts = TextSet(["the cat sat the mat", "cat", "mat the cat", "sat"])
    assert words(texts.token_sequences(words_tokenizer(), 4, 8)) == ["[BOS] the cat sat", "[BOS] cat", "[BOS] mat"]


def test_a_tokenizer_that_knows_no_word_is_one_sentence() -> None:
    with pytest.raises(ExportError, match="finds no token"):
        TextSet(["", ""]).token_sequences(Tokenizer(FastTokenizer(WordLevel(WORDS))), 10, 100)


def test_a_users_text_is_used_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat " * 1000)
    sequences = TextSet.read(path).token_sequences(words_tokenizer(), 10_000, 10_000)
    assert len(sequences) > 1
    assert sum(map(len, sequences)) >= 3000


@pytest.mark.parametrize(
    ("path", "words"),
    [("/dev/zero", r"\(more than the 64 MiB .*\): give another\.$"), ("/none", r"\(No such file .*\):")],
)
def test_a_users_text_without_an_end_or_a_place_is_refused(path: str, words: str) -> None:
    with pytest.raises(ExportError, match=rf"^'{path}' cannot be the calibration text {words}"):
        TextSet.read(Path(path))


def test_a_users_text_in_another_encoding_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"Z\xfcrich")
    with pytest.raises(ExportError, match=r"text' is not UTF-8 \(byte 1\): save it as plain text\.$"):
        TextSet.read(tmp_path / "text")


@pytest.mark.parametrize("name", ["calibration", "held_out"])
def test_every_prefix_of_the_bundled_texts_is_mixed(name: str) -> None:
    samples = bundled_samples(name)
    kinds = {sample["kind"] for sample in samples}
    assert {"code", "maths", "list", "prose", "documentation", "question", "other languages"} <= kinds
    assert len({sample["kind"] for sample in samples[: len(samples) // 3]}) >= len(kinds) // 2
    for sample in samples:
        roles = [message["role"] for message in sample.get("messages", [])]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(text.strip() for text in contents(sample))


def test_the_bundled_texts_are_thousands_of_tokens_in_sequences_that_fit() -> None:
    tokenizer = Tokenizer.from_file(ROOT / "models" / "demo" / "package" / "tokenizer.json")
    for texts in (TextSet.bundled("calibration"), TextSet.bundled("held_out")):
        sequences = texts.token_sequences(tokenizer, MAX_SEQUENCE, 1 << 20)
        assert sum(map(len, sequences)) > 4000


def test_what_is_measured_on_is_nothing_that_rounding_learns_from() -> None:
    calibration = "\n".join(text for sample in bundled_samples("calibration") for text in contents(sample))
    known = {line.strip() for line in calibration.splitlines()}
    held_out = [line.strip() for s in bundled_samples("held_out") for text in contents(s) for line in text.splitlines()]
    shared = {line for line in held_out if line in known and len(line) > 12}
    assert shared <= {"description: >-"}  # a form that pages of all kinds begin with


def test_excerpts_name_where_they_are_from_and_the_readme_its_licence() -> None:
    readme = resources.files("reader_edge_export.texts").joinpath("README.md").read_text(encoding="utf-8")
    licensed = {line.split("|")[1].strip() for line in readme.splitlines() if line.startswith("|")}
    origins = {s["origin"] for name in ("calibration", "held_out") for s in bundled_samples(name) if "origin" in s}
    assert {origin.partition(",")[0] for origin in origins} <= licensed
    lines = (ROOT / "tests" / "data" / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    held_out = {json.loads(line)["id"] for line in lines}
    for sample in bundled_samples("held_out"):
        assert sample.get("origin", "").partition(", ")[2] in held_out | {""}

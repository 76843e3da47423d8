"""What a GGUF file says of its vocabulary: ends, fillers and templates are known, and what cannot be is refused."""

from pathlib import Path
from typing import Any

import pytest

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.tokenizer import build_tokenizer
from reader_edge_export.sources.gguf.vocabulary import TokenKind, chat_template_of
from reader_edge_runtime.errors import GgufError, ReaderEdgeError, TokenizerError
from tests.export.sources.gguf.written_vocabulary import PIECES, read
from tests.gguf_files import sentence_piece, small_vocabulary, write_gguf


def test_all_ends_that_ollama_takes_over_are_known(tmp_path: Path) -> None:
    values = small_vocabulary() | {"tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.eos_token_ids": [3, 5, 4]}
    for token_id in (3, 5, 4):
        values["tokenizer.ggml.token_type"][token_id] = int(TokenKind.USER_DEFINED)
    flags = {f"tokenizer.ggml.add_{name}_token": False for name in ("unknown", "padding", "seperator")}
    assert read(tmp_path / "file", values | flags).end_ids[:3] == (3, 5, 4)
    with pytest.raises(TokenizerError, match=r"eos_token_ids as \[3, 999\] of"):
        read(tmp_path / "other", values | {"tokenizer.ggml.eos_token_ids": [3, 999]})


def test_fillers_that_ollama_counts_from_nought_are_no_tokens(tmp_path: Path) -> None:
    values = small_vocabulary()
    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    fillers = [f"[PAD{number}]" for number in range(3)]
    padded = values | {
        "tokenizer.ggml.tokens": [*tokens, *fillers],
        "tokenizer.ggml.token_type": [*kinds, *[int(TokenKind.USER_DEFINED)] * 3],
    }
    plain, filled = (build_tokenizer(read(tmp_path / name, each)) for name, each in (("a", values), ("b", padded)))
    text = "one [PAD0] and [PAD2]"
    assert filled.encode(text).ids == plain.encode(text).ids
    assert filled.get_vocab_size() == plain.get_vocab_size()
    alone = padded | {"tokenizer.ggml.tokens": [*tokens, "[PAD7]", "zzz", "[PAD2]"]}
    assert build_tokenizer(read(tmp_path / "c", alone)).get_vocab_size() == plain.get_vocab_size() + 3


def test_every_token_that_ends_an_answer_is_known(tmp_path: Path) -> None:
    added = dict.fromkeys(["<|im_end|>", "<end_of_turn>", "<|user|>", "<eot>"], TokenKind.CONTROL)
    values = sentence_piece(PIECES, {**added, "<|end|>": TokenKind.USER_DEFINED})
    ids = {token: token_id for token_id, token in enumerate(values["tokenizer.ggml.tokens"])}
    values["tokenizer.ggml.eos_token_id"] = ids["<|im_end|>"]
    values["tokenizer.ggml.eot_token_id"] = ids["<eot>"]
    vocabulary = read(tmp_path / "file", values)
    ends = ["<|im_end|>", "<eot>", "</s>", "<end_of_turn>", "<|end|>"]
    assert list(vocabulary.end_ids) == [ids[token] for token in ends]
    tokenizer = build_tokenizer(vocabulary)
    assert tokenizer.decode([ids["c"], *vocabulary.end_ids, ids["<|user|>"]]) == "c"


def test_html_of_gemma_ends_no_answer(tmp_path: Path) -> None:
    values = sentence_piece({**PIECES, "<eos>": 0.0}, {})
    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    kinds[tokens.index("</s>")] = int(TokenKind.USER_DEFINED)
    values["tokenizer.ggml.eos_token_id"] = tokens.index("<eos>")
    assert read(tmp_path / "file", values).end_ids == (tokens.index("<eos>"),)


def test_what_converters_fill_ids_with_is_no_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    values = small_vocabulary()
    end = len(values["tokenizer.ggml.tokens"])
    fillers = [f"[PAD{token_id}]" for token_id in (end, end + 2)]
    values["tokenizer.ggml.tokens"] += [fillers[0], "real", fillers[1]]
    values["tokenizer.ggml.token_type"] += [5, 1, 4]  # unused, normal, and as old converters had it
    tokenizer = build_tokenizer(read(tmp_path / "file", values))
    assert (tokenizer.token_to_id("real"), tokenizer.id_to_token(end + 2)) == (end + 1, None)
    assert not set(tokenizer.encode(" ".join(fillers)).ids) & {end, end + 2}
    tokenizer.to_str()
    assert capfd.readouterr().err == ""  # where the library complains of holes


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": "bert"}, "model as 'bert', which is not known here; known are: gpt2, llama"),
        ({"pre": "klingon"}, "pre as 'klingon', which is not known here; known are: default, gpt-2"),
        ({"pre": None}, "gives no tokenizer.ggml.pre; known are: default, .*: give the model in Hugging Face format"),
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokens": [1, 2]}, r"tokens as \[1, 2\]"),
        ({"tokens": ["a", "a"]}, "has the token 'a' as 0 and as 1: give another file"),
        ({"tokens": ["a" * 5000], "token_type": None}, "a token of 5000 characters"),
        ({"token_type": [1]}, "token_type for 1 of 259 tokens"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"merges": ["x y"]}, "cannot be built"),
        ({"merges": ["xy"]}, "cannot be built"),
        ({"eos_token_id": 259}, "eos_token_id as 259 of 259 tokens"),
        ({"add_bos_token": True}, "names none"),
        ({"add_bos_token": 1}, "add_bos_token as 1"),
    ],
)
def test_vocabularies_that_cannot_be_are_refused_by_name(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    own = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    with pytest.raises(ReaderEdgeError, match=words) as caught:
        build_tokenizer(read(tmp_path / "file", {**small_vocabulary(), **own}))
    assert "\n" not in str(caught.value)


def test_pieces_without_scores_or_too_long_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"no tokenizer\.ggml\.scores"):
        read(tmp_path / "a", {**sentence_piece(PIECES, {}), "tokenizer.ggml.scores": None})
    with pytest.raises(TokenizerError, match="a piece of 200 characters"):
        build_tokenizer(read(tmp_path / "b", sentence_piece({**PIECES, "a" * 200: 0.0}, {})))


def test_pieces_that_join_in_endless_ways_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge_export.sources.gguf.tokenizer._MAX_MERGES", 50)
    path = tmp_path / "file"
    pieces = {"a" * length: -float(length) for length in range(1, 12)}
    build_tokenizer(read(path, sentence_piece(dict(list(pieces.items())[:10]), {})))  # 45 ways
    with pytest.raises(TokenizerError, match="join in more than 50 ways"):
        build_tokenizer(read(path, sentence_piece(pieces, {})))


def test_pieces_and_special_tokens_of_very_many_characters_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reader_edge_export.sources.gguf.tokenizer._MAX_PIECES_CHARACTERS", 100)
    with pytest.raises(TokenizerError, match=r"pieces of \d+ characters together"):
        build_tokenizer(read(tmp_path / "a", sentence_piece({**PIECES, "a" * 100: 0.0}, {})))
    monkeypatch.setattr("reader_edge_export.sources.gguf.tokenizer._MAX_ADDED_CHARACTERS", 100)
    with pytest.raises(TokenizerError, match=r"4 special tokens of 1\d\d characters together"):
        build_tokenizer(read(tmp_path / "b", sentence_piece({}, {"b" * 100: TokenKind.CONTROL})))


def test_chat_templates_by_name_are_all_read(tmp_path: Path) -> None:
    """As gguf's own writer puts a list of templates."""

    def templates(name: str, values: dict[str, Any]) -> object:
        return chat_template_of(GgufFile.open(write_gguf(tmp_path / name, "llama", values, {})))

    named = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "with tools"}
    assert templates("none", {}) is None
    assert templates("one", {"tokenizer.chat_template": "plain"}) == "plain"
    both = {"default": "plain", "tool_use": "with tools"}
    assert templates("both", {"tokenizer.chat_template": "plain", **named}) == both
    assert templates("named", named) == {"tool_use": "with tools"}
    with pytest.raises(TokenizerError, match="17 chat templates"):
        templates("many", {"tokenizer.chat_templates": [str(number) for number in range(17)]})

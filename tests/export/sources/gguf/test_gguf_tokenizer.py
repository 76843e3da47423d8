"""A tokenizer built from a GGUF file gives the ids of the model's own; what its vocabulary cannot be is refused."""

from itertools import chain, pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.tokenizer import build_tokenizer
from reader_edge_export.sources.gguf.tokenizer_kind import PRE_TOKENIZERS
from reader_edge_export.sources.gguf.vocabulary import TokenKind, chat_template_of
from reader_edge_runtime.errors import GgufError, ReaderEdgeError, TokenizerError
from tests.export.sources.gguf.gguf_checks import PIECES, read
from tests.gguf_files import byte_level, sentence_piece, small_vocabulary, write_gguf

TEXTS = [
    "",
    "I've 12345 cats, they'RE 6.7 Zürich\r\n\n  été\t\u0065\u0301 x_Y=1;  \n",
    "def add(a, b):\n    return a + b  # 全部 ひらがな カタカナ 한국어 \U0001f642\u200d",
    " a  b   <end>after\u00a0 \u2028 <|x|>",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def trained(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenizer:
    """A byte-level tokenizer as a model would bring it, that knows the texts above well."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=["<end>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 2, trainer)
    tokenizer.add_tokens(["<|x|>"])
    return tokenizer


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


OWN = {  # what the models' tokenizer.json say, which is not how the expressions here are put
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "qwen2": split(LLAMA3.replace("{1,3}", "")),
    "dbrx": split(LLAMA3),
}


@pytest.mark.parametrize("pre", OWN)
def test_byte_level_ids_are_those_of_the_model_s_own_tokenizer(pre: str, tmp_path: Path) -> None:
    own = trained(OWN[pre])
    if pre == "qwen2":
        own.normalizer = normalizers.NFC()
    tokenizer = build_tokenizer(read(tmp_path / "file", byte_level(own, pre)))
    for text in TEXTS:
        assert tokenizer.encode(text).ids == own.encode(text).ids
        assert tokenizer.decode(own.encode(text).ids) == own.decode(own.encode(text).ids)


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("default", "x<=1 12345", ["x", "<=", "1", "Ġ", "123", "45"]),
        ("llama-bpe", "1234 DON'T\n\nx", ["123", "4", "ĠDON", "'T", "ĊĊ", "x"]),
        ("deepseek-coder", "a 12\n b!?", ["a", "Ġ", "1", "2", "Ċ", "Ġb", "!?"]),
        (
            "deepseek-llm",
            "na\u00efve 12\n b!?",
            ["na", "\u00c3\u00af", "ve", "\u0120", "1", "2", "\u010a", "\u0120b", "!?"],
        ),
        ("deepseek-v3", "+abc 1234 def!", ["+abc", "Ġ", "123", "4", "Ġdef", "!"]),
        ("tekken", "camelCase 12's", ["camel", "Case", "Ġ", "1", "2", "'s"]),
        ("gpt-4o", "camelCase 1234 it's", ["camel", "Case", "Ġ", "123", "4", "Ġit's"]),
        ("lfm2", "1234 DON'T", ["123", "4", "ĠDON", "'T"]),
        ("qwen35", "x 12's", ["x", "Ġ", "1", "2", "'s"]),
        ("seed-coder", "!!\n\nx 12", ["!!", "ĊĊ", "x", "Ġ", "1", "2"]),
    ],
)
def test_words_are_cut_as_llama_cpp_cuts_them(pre: str, text: str, pieces: list[str]) -> None:
    cut = PRE_TOKENIZERS[pre].pre_tokenizer().pre_tokenize_str(text)
    assert [piece for piece, _ in cut] == pieces


def test_marks_belong_to_their_letters_in_qwen_3_5() -> None:
    pieces = {
        pre: len(PRE_TOKENIZERS[pre].pre_tokenizer().pre_tokenize_str("\u0928\u0947\u0928"))
        for pre in ("qwen2", "qwen35")
    }
    assert pieces == {"qwen2": 2, "qwen35": 1}


def test_words_that_are_tokens_stay_whole_where_the_kind_says_so(tmp_path: Path) -> None:
    values = small_vocabulary()
    values["tokenizer.ggml.tokens"].append("hex")  # which no merges make
    values["tokenizer.ggml.token_type"].append(int(TokenKind.NORMAL))
    values["tokenizer.ggml.add_bos_token"] = False
    for pre, num_tokens in (("llama-bpe", 1), ("dbrx", 2)):
        vocabulary = read(tmp_path / pre, {**values, "tokenizer.ggml.pre": pre})
        assert len(build_tokenizer(vocabulary).encode("hex").ids) == num_tokens


@pytest.fixture(scope="module", params=[True, False], ids=["with a space before", "as it is"])
def adds_space(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def pieces_tokenizer(adds_space: bool, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    values = {**sentence_piece(PIECES, {"<x>": TokenKind.USER_DEFINED}), "tokenizer.ggml.add_space_prefix": adds_space}
    return build_tokenizer(read(tmp_path_factory.mktemp("pieces") / "file", values))


def joined(text: str, adds_space: bool) -> list[str]:
    """SentencePiece's BPE: join the two neighbours whose piece scores best, the leftmost first; spell the rest."""
    symbols = list(("▁" if adds_space and text else "") + text.replace(" ", "▁"))
    while True:
        pairs = [left + right for left, right in pairwise(symbols)]
        best = max(range(len(pairs)), key=lambda place: PIECES.get(pairs[place], -inf), default=None)
        if best is None or pairs[best] not in PIECES:
            break
        symbols[best : best + 2] = [pairs[best]]
    spelt = [[symbol] if symbol in PIECES else [f"<0x{byte:02X}>" for byte in symbol.encode()] for symbol in symbols]
    return list(chain.from_iterable(spelt))


@given(text=st.text(st.sampled_from("abc é€\n\U0001f642"), max_size=30))
def test_pieces_are_joined_by_their_scores(pieces_tokenizer: Tokenizer, adds_space: bool, text: str) -> None:
    encoding = pieces_tokenizer.encode(text, add_special_tokens=False)
    assert encoding.tokens == joined(text, adds_space)
    assert pieces_tokenizer.decode(encoding.ids) == text


def test_tokens_that_a_user_defined_are_found_before_pieces(pieces_tokenizer: Tokenizer, adds_space: bool) -> None:
    space = ["▁"] if adds_space else []
    tokens = pieces_tokenizer.encode("cc<x>b", add_special_tokens=False).tokens
    assert tokens == [*space, "cc", "<x>", *space, "b"]
    assert "<x>" in pieces_tokenizer.decode(pieces_tokenizer.encode("cc<x>b").ids)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ["<s>", "▁a"]),
        ({"add_bos_token": False}, ["▁a"]),
        ({"add_eos_token": True}, ["<s>", "▁a", "</s>"]),
        ({"add_bos_token": False, "add_eos_token": True, "eos_token_id": 0}, ["▁a", "<unk>"]),
    ],
)
def test_texts_begin_and_end_as_the_file_says(values: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    own = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    vocabulary = read(tmp_path / "file", {**sentence_piece(PIECES, {}), **own})
    assert build_tokenizer(vocabulary).encode("a").tokens == expected


@pytest.mark.parametrize(("pre", "adds_bos"), [("gpt-2", False), ("llama-bpe", True), ("tekken", True)])
def test_byte_level_texts_begin_as_the_kind_does_unless_the_file_says(pre: str, adds_bos: bool, tmp_path: Path) -> None:
    values = {**small_vocabulary(), "tokenizer.ggml.pre": pre, "tokenizer.ggml.bos_token_id": 258}
    first = build_tokenizer(read(tmp_path / "a", values)).encode("he").tokens[0]
    assert (first == "<end>") == adds_bos
    values["tokenizer.ggml.add_bos_token"] = not adds_bos
    first = build_tokenizer(read(tmp_path / "b", values)).encode("he").tokens[0]
    assert (first == "<end>") != adds_bos


@pytest.mark.parametrize(("name", "is_stripped"), [("Phi-3 Mini", True), ("Other", False)])
def test_special_tokens_of_phi_3_swallow_white_space(name: str, is_stripped: bool, tmp_path: Path) -> None:
    values = sentence_piece(PIECES, {"<|user|>": TokenKind.CONTROL})
    tokenizer = build_tokenizer(read(tmp_path / "file", {"general.name": name, **values}))
    ids = tokenizer.encode("<|user|>\n a", add_special_tokens=False).ids
    assert [tokenizer.id_to_token(token_id) for token_id in ids] == [
        "<|user|>",
        *([] if is_stripped else ["▁", "<0x0A>"]),
        "▁a",
    ]


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


def test_pieces_and_tokens_of_many_characters_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

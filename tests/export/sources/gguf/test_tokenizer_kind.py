"""What a file declares of its tokenizer is held against its own tokens: followed where they are clear, else refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.tokenizer import build_tokenizer
from reader_edge_export.sources.gguf.tokenizer_kind import PRE_TOKENIZERS
from reader_edge_export.sources.gguf.vocabulary import TokenKind, vocabulary_of
from reader_edge_runtime.errors import TokenizerError
from tests.conftest import ROOT
from tests.export.sources.gguf.test_gguf_tokenizer import LLAMA3, split
from tests.gguf_files import byte_level, sentence_piece, small_vocabulary, write_gguf

LINES = (ROOT / "README.md").read_text("utf-8").splitlines() + ["a  b", "camelCase 1234 ;\n\n"] * 3
TEXTS = [
    "the model's 123 drafts,  twice",
    "<turn>user\nnaïve 🙂 <table> </s>\n\n\nx</s>",
    "  def f(a, b):\n\treturn 12345",
]
SPECIAL, PLAIN = ("<pad>", "<eos>", "<bos>", "<unk>", "<turn>"), ("<table>", "</s>")


def _trained(pre_tokenizer: pre_tokenizers.PreTokenizer, lines: list[str] = LINES) -> Tokenizer:
    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer, fast.decoder = pre_tokenizer, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    fast.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False))
    fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    fast.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN])
    return fast


@pytest.fixture(scope="module")
def gemma() -> Tokenizer:
    """Pieces joined by merges, as Gemma's tokenizer.json has them."""
    fast = Tokenizer(models.BPE(byte_fallback=True))
    fast.normalizer = normalizers.Replace(" ", "▁")
    fast.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=[*SPECIAL, *PLAIN, *bytes_], show_progress=False)
    fast.train_from_iterator(LINES, trainer)
    fields = json.loads(fast.to_str())
    fields["added_tokens"] = [token for token in fields["added_tokens"] if token["id"] < len(SPECIAL) + len(PLAIN)]
    for token in fields["added_tokens"]:
        token["special"] = token["content"] in SPECIAL
    return Tokenizer.from_str(json.dumps(fields))


def as_ollama_writes(fast: Tokenizer, **changes: object) -> dict[str, Any]:
    """The values of a tokenizer.json alone, with ids for scores; changes: by the keys below tokenizer.ggml."""
    values = byte_level(fast, "default")
    ids = {"bos": "<bos>", "eos": "<eos>", "unknown": "<unk>"}
    named = {f"tokenizer.ggml.{name}_token_id": fast.token_to_id(token) for name, token in ids.items()}
    scores = [float(number) for number in range(len(values["tokenizer.ggml.tokens"]))]
    own = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {**values, **named, "tokenizer.ggml.scores": scores, **own}


def _built(path: Path, architecture: str, values: dict[str, Any]) -> Tokenizer:
    return build_tokenizer(vocabulary_of(GgufFile.open(write_gguf(path, architecture, values, {}))))


def _ids(fast: Tokenizer) -> list[list[int]]:
    return [fast.encode(text, add_special_tokens=False).ids for text in TEXTS]


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("gemma4", {"model": "llama", "pre": "gemma4"}),
        ("gemma4", {"model": "llama", "pre": "gemma4", "add_bos_token": False}),
        ("gemma4", {"model": "gemma4", "pre": None, "scores": None}),
        ("gemma4", {"model": "gpt2", "pre": "gemma4"}),
        ("gemma3", {"model": "gpt2", "pre": "default"}),
        ("gemma3", {"model": "llama", "pre": "default", "scores": None}),
        ("gemma3", {"model": "llama", "pre": "default", "scores": [-1000.0] * 900}),
        ("llama", {"model": "gpt2", "add_space_prefix": False}),
    ],
)
def test_pieces_with_merges_are_joined_by_them_whatever_the_file_calls_its_tokenizer(
    architecture: str, changes: dict[str, object], gemma: Tokenizer, tmp_path: Path
) -> None:
    built = _built(tmp_path / "file", architecture, as_ollama_writes(gemma, **changes))
    assert _ids(built) == _ids(gemma)
    assert built.decode(built.encode(TEXTS[1]).ids) == gemma.decode(gemma.encode(TEXTS[1]).ids)
    assert built.encode("x").ids == [gemma.token_to_id("<bos>"), gemma.token_to_id("x")]


def _ranked(gemma: Tokenizer) -> list[float]:
    """Scores as a tokenizer.model has them, which are 0 of what is user defined."""
    tokens = sorted(gemma.get_vocab(), key=gemma.get_vocab().__getitem__)
    merges = ["".join(merge) for merge in json.loads(gemma.to_str())["model"]["merges"]]
    ranks = {token: -float(rank) for rank, token in enumerate(merges, 1)}
    return [ranks.get(token, -1e5 if len(token) == 1 else 0.0) for token in tokens]


@pytest.mark.parametrize("has_merges", [True, False])
def test_user_pieces_called_normal_are_found_in_texts(has_merges: bool, gemma: Tokenizer, tmp_path: Path) -> None:
    kinds = [3] * len(SPECIAL) + [1] * len(PLAIN) + [6] * 256 + [1] * (gemma.get_vocab_size() - 263)
    values = as_ollama_writes(gemma, model="llama", scores=_ranked(gemma), token_type=kinds)
    values |= {} if has_merges else {"tokenizer.ggml.merges": None}
    assert _ids(_built(tmp_path / "file", "gemma3", values)) == _ids(gemma)


def test_a_mark_that_the_file_calls_normal_is_found_in_texts(tmp_path: Path) -> None:
    own = _trained(split(LLAMA3))
    values = as_ollama_writes(own, pre="llama-bpe", add_bos_token=False)
    values["tokenizer.ggml.token_type"][own.get_vocab()["<turn>"]] = int(TokenKind.NORMAL)
    assert _ids(_built(tmp_path / "file", "llama", values)) == _ids(own)


def test_byte_level_merges_are_read_so_in_a_file_that_calls_itself_llama(tmp_path: Path) -> None:
    own = _trained(split(LLAMA3))
    values = as_ollama_writes(own, model="llama", pre="dbrx", add_bos_token=False)
    assert _ids(_built(tmp_path / "file", "llama", values)) == _ids(own)


@pytest.mark.parametrize("pre", ["pixtral", "default"])
def test_pixtral_is_llama_3_s_rule_in_files_of_nemotron_alone(pre: str, tmp_path: Path) -> None:
    values = as_ollama_writes(_trained(PRE_TOKENIZERS["llama-bpe"].pre_tokenizer()), pre=pre)
    path = write_gguf(tmp_path / "file", "nemotron_h_moe", values, {})
    assert vocabulary_of(GgufFile.open(path)).kind.pre == "llama-bpe"
    other = write_gguf(tmp_path / "other", "llama", values, {})
    with pytest.raises(TokenizerError, match=f"tokenizer.ggml.pre as '{pre}'"):
        vocabulary_of(GgufFile.open(other))


@pytest.mark.parametrize("pre", ["default", None])
@pytest.mark.parametrize(("architecture", "rule"), [("lfm2", "lfm2"), ("gpt-oss", "gpt-4o"), ("mistral3", "tekken")])
def test_an_unknown_rule_is_that_of_the_family(architecture: str, rule: str, pre: str | None, tmp_path: Path) -> None:
    values = as_ollama_writes(_trained(PRE_TOKENIZERS[rule].pre_tokenizer()), pre=pre)
    path = write_gguf(tmp_path / "file", architecture, values, {})
    assert vocabulary_of(GgufFile.open(path)).kind.pre == rule


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pre": "default"}, "tokenizer.ggml.pre as 'default', by which "),
        ({"pre": "deepseek-coder"}, "of its tokens come of no text, such as"),
        ({"model": "llama"}, "names its tokenizer 'llama', but has tokens of bytes"),
        ({"model": "llama", "pre": "dbrx", "merges": None}, "names its tokenizer 'llama', but has tokens of bytes"),
        ({"model": "gemma4"}, "names its tokenizer 'gemma4', but has tokens of bytes"),
        ({"pre": "dbrx", "token_type": None}, "calls all its tokens normal"),
        ({"pre": "llama-bpe", "token_type": None}, "calls all its tokens normal"),
        ({"pre": "dbrx", "token_type": [9] * 907}, "has a token_type of 9, which is none"),
        ({"pre": "dbrx", "token_type": [3] * 907}, "calls all its tokens special"),
        ({"pre": "dbrx", "token_type": [6] * 907}, "the token of a byte, which it is not"),
    ],
)
def test_what_byte_level_tokens_contradict_is_refused(changes: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=words):
        _built(tmp_path / "file", "llama", as_ollama_writes(_trained(split(LLAMA3)), **changes))


@pytest.mark.parametrize("pre", ["qwen2", "tekken", "smollm"])
def test_a_rule_that_cuts_the_numbers_of_a_vocabulary_into_digits_is_refused(pre: str, tmp_path: Path) -> None:
    """Few of its tokens, as in Llama 3's vocabulary of 128,000, but of every text with numbers."""
    lines = [*LINES, *(str(number) for number in range(100, 112))] * 3
    values = as_ollama_writes(_trained(split(LLAMA3), lines), pre=pre)
    with pytest.raises(TokenizerError, match=rf"tokenizer\.ggml\.pre as '{pre}', by which .* such as '\d+'"):
        _built(tmp_path / "file", "llama", values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "names its tokenizer 'gpt2', but has merges of pieces, and no add_space_prefix"),
        ({"model": "llama", "merges": None}, "no merges, and scores that rank no pieces"),
        ({"model": "llama", "merges": None, "scores": [-1000.0] * 900}, "no merges, and scores that rank no pieces"),
        ({"model": "gemma4", "add_space_prefix": True}, "wants a space before a text"),
        ({"model": "llama", "token_type": None}, "calls all its tokens normal"),
    ],
)
def test_contradictions_of_pieces_are_refused(
    changes: dict[str, object], words: str, gemma: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(TokenizerError, match=words):
        _built(tmp_path / "file", "llama", as_ollama_writes(gemma, **changes))


def test_merges_and_scores_in_different_orders_are_refused(gemma: Tokenizer, tmp_path: Path) -> None:
    values = as_ollama_writes(gemma, model="llama", scores=_ranked(gemma))
    values["tokenizer.ggml.merges"].sort()
    with pytest.raises(TokenizerError, match="merges and scores of its pieces in different orders"):
        _built(tmp_path / "file", "gemma3", values)


def test_scores_that_are_probabilities_are_refused(tmp_path: Path) -> None:
    """Ollama's converter writes them of any tokenizer.model, also of one whose pieces no merges join."""
    with pytest.raises(TokenizerError, match=r"scores of a Unigram tokenizer \(-2\.5 and so on\)"):
        _built(tmp_path / "file", "llama", sentence_piece({"▁a": -2.5, "ab": -3.25, "▁ab": -9.75}, {}))


def test_texts_that_have_no_token_are_refused_where_they_would_vanish(tmp_path: Path) -> None:
    values = small_vocabulary()
    values["tokenizer.ggml.tokens"][values["tokenizer.ggml.tokens"].index("q")] = "<q>"
    with pytest.raises(TokenizerError, match="no token of the byte 'q', whose text would vanish"):
        _built(tmp_path / "a", "llama", values)
    values = sentence_piece({"▁a": -1.0, "a": -2.0, "▁": -3.0}, {})
    values["tokenizer.ggml.tokens"][:4] = ["<u>", "<s>", "</s>", "<0>"]
    values["tokenizer.ggml.token_type"][3] = int(TokenKind.UNUSED)
    with pytest.raises(TokenizerError, match="neither tokens for all bytes nor one for unknown text"):
        _built(tmp_path / "b", "llama", values)


def test_usual_ids_are_taken_only_where_the_vocabulary_has_their_tokens(tmp_path: Path) -> None:
    values = sentence_piece({"▁a": -1.0, "a": -2.0, "▁": -3.0}, {})
    assert vocabulary_of(GgufFile.open(write_gguf(tmp_path / "a", "llama", values, {}))).bos_id == 1
    values["tokenizer.ggml.tokens"][:3] = ["<pad>", "<eos>", "<bos>"]
    with pytest.raises(TokenizerError, match="wants a token before or behind a text, but names none"):
        vocabulary_of(GgufFile.open(write_gguf(tmp_path / "b", "llama", values, {})))


@pytest.mark.parametrize(
    ("pre", "cut"),
    [
        ("gpt-2", pre_tokenizers.ByteLevel(add_prefix_space=False)),
        (
            "smollm",
            pre_tokenizers.Sequence(
                [pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            ),
        ),
        ("dbrx", split(LLAMA3)),
    ],
)
def test_the_rule_that_the_tokens_came_of_is_taken(pre: str, cut: pre_tokenizers.PreTokenizer, tmp_path: Path) -> None:
    own = _trained(cut)
    built = _built(tmp_path / "file", "llama", as_ollama_writes(own, pre=pre, add_bos_token=False))
    assert _ids(built) == _ids(own)


def _smollm_like() -> dict[str, Any]:
    return as_ollama_writes(_trained(split(LLAMA3)), pre="dbrx", add_bos_token=False)


def _with_kind(values: dict[str, Any], token: str, kind: TokenKind) -> dict[str, Any]:
    kinds = list(values["tokenizer.ggml.token_type"])
    kinds[values["tokenizer.ggml.tokens"].index(token)] = int(kind)
    return values | {"tokenizer.ggml.token_type": kinds}


@pytest.mark.parametrize("token", ["\u0120the", "a", "\u0120"])
@pytest.mark.parametrize("kind", [TokenKind.CONTROL, TokenKind.UNKNOWN])
def test_tokens_that_text_is_made_of_are_not_special(token: str, kind: TokenKind, tmp_path: Path) -> None:
    """They would vanish from answers."""
    with pytest.raises(TokenizerError, match=f"calls '{token}' {kind.name.lower()}, which text is made of"):
        _built(tmp_path / "file", "llama", _with_kind(_smollm_like(), token, kind))


def _piece(gemma: Tokenizer) -> str:
    """A piece that merges make."""
    return "".join(json.loads(gemma.to_str())["model"]["merges"][100])


@pytest.mark.parametrize("has_merges", [True, False])
def test_pieces_that_text_is_made_of_are_not_special_either(has_merges: bool, gemma: Tokenizer, tmp_path: Path) -> None:
    values = as_ollama_writes(gemma, model="llama", scores=_ranked(gemma))
    values |= {} if has_merges else {"tokenizer.ggml.merges": None}
    piece = _piece(gemma)
    with pytest.raises(TokenizerError, match=re.escape(f"calls {piece!r} control, which text is made of")):
        _built(tmp_path / "file", "gemma3", _with_kind(values, piece, TokenKind.CONTROL))


@pytest.mark.parametrize("token", ["\u2581", "a", "<0x0A>"])
def test_single_symbols_and_bytes_of_pieces_are_not_special(token: str, gemma: Tokenizer, tmp_path: Path) -> None:
    values = as_ollama_writes(gemma, model="llama", scores=_ranked(gemma), merges=None)
    with pytest.raises(TokenizerError, match=f"calls '{token}' control, which text is made of"):
        _built(tmp_path / "file", "gemma3", _with_kind(values, token, TokenKind.CONTROL))


def test_pieces_that_come_before_what_they_join_are_refused(gemma: Tokenizer, tmp_path: Path) -> None:
    values = as_ollama_writes(gemma, model="llama", scores=_ranked(gemma), merges=None)
    tokens = values["tokenizer.ggml.tokens"]
    first = len(tokens) - 500
    tokens[first:] = tokens[: first - 1 : -1]
    with pytest.raises(TokenizerError, match="pieces better scores than what they join"):
        _built(tmp_path / "file", "gemma3", values)


@pytest.mark.parametrize("name", ["bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id"])
def test_no_token_of_text_begins_or_ends_one(name: str, gemma: Tokenizer, tmp_path: Path) -> None:
    values = _smollm_like()
    word = values["tokenizer.ggml.tokens"].index("\u0120the")
    with pytest.raises(TokenizerError, match=f"gives {name} as '\u0120the', which text is made of"):
        _built(tmp_path / "a", "llama", values | {f"tokenizer.ggml.{name}": word})
    with pytest.raises(TokenizerError, match="gives eos_token_ids as '\u0120the', which text is made of"):
        _built(tmp_path / "b", "llama", values | {"tokenizer.ggml.eos_token_ids": [word]})
    pieces = as_ollama_writes(gemma, model="llama", scores=_ranked(gemma), merges=None)
    pieces[f"tokenizer.ggml.{name}"] = gemma.token_to_id(_piece(gemma))
    with pytest.raises(TokenizerError, match=re.escape(f"gives {name} as {_piece(gemma)!r}, which text is made of")):
        _built(tmp_path / "c", "gemma3", pieces)


def test_a_mark_may_be_special_though_merges_make_it(tmp_path: Path) -> None:
    """A trainer's text spells such ones, too."""
    values = small_vocabulary()
    values["tokenizer.ggml.merges"] += ["< he", "<he >"]
    values["tokenizer.ggml.tokens"] += ["<he", "<he>"]
    values["tokenizer.ggml.token_type"] += [int(TokenKind.NORMAL), int(TokenKind.CONTROL)]
    values["tokenizer.ggml.eos_token_id"] = values["tokenizer.ggml.tokens"].index("<he>")
    assert _built(tmp_path / "file", "llama", values).encode("a<he>").tokens == ["a", "<he>"]


def _swapped(values: list[Any], first: int, second: int) -> list[Any]:
    values = list(values)
    values[first], values[second] = values[second], values[first]
    return values


@pytest.mark.parametrize(
    ("key", "change", "words"),
    [
        ("merges", lambda merges: merges[::-1], "merges and tokens in different orders"),
        ("merges", lambda merges: sorted(merges), "merges and tokens in different orders"),
        ("merges", lambda merges: _swapped(merges, 3, 90), "merges and tokens in different orders"),
        ("merges", lambda merges: [*merges, *merges[:10]], "10 of its .* merges more than once"),
        ("merges", lambda merges: merges[: len(merges) // 2], "has no merges for .* such as"),
        ("tokens", lambda tokens: _swapped(tokens, 300, 700), "2 of .* have changed places"),
        (
            "tokens",
            lambda tokens: _swapped(tokens, tokens.index("a"), tokens.index("b")),
            "2 of .* have changed places",
        ),
    ],
)
def test_contradicting_merges_are_refused(
    key: str, change: Callable[[list[str]], list[str]], words: str, tmp_path: Path
) -> None:
    values = _smollm_like()
    values[f"tokenizer.ggml.{key}"] = change(values[f"tokenizer.ggml.{key}"])
    with pytest.raises(TokenizerError, match=words):
        _built(tmp_path / "file", "llama", values)


@pytest.mark.parametrize("change", [lambda some: _swapped(some, 30, 90), lambda some: sorted(some[:90]) + some[90:]])
def test_scores_out_of_order_are_refused(
    change: Callable[[list[Any]], list[Any]], gemma: Tokenizer, tmp_path: Path
) -> None:
    values = as_ollama_writes(gemma, model="gemma4", pre=None, scores=None)
    values["tokenizer.ggml.merges"] = change(values["tokenizer.ggml.merges"])
    with pytest.raises(TokenizerError, match="merges and tokens in different orders"):
        _built(tmp_path / "a", "gemma4", values)
    scores = _ranked(gemma)
    first = len(scores) - 200
    scores[first:] = change(scores[first:])
    with pytest.raises(TokenizerError, match="scores of its pieces and tokens in different orders"):
        _built(tmp_path / "b", "gemma3", as_ollama_writes(gemma, model="llama", merges=None, scores=scores))

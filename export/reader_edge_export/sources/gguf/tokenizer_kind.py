"""Which kind of tokenizer a file has: what it declares, held against its own tokens, merges and scores.

Converters name another kind (Ollama's calls Gemma 4 `llama`, and pieces without a tokenizer.model `gpt2`), put ids or
one number for scores, and `default` where they know no rule. What the tokens show is followed where it is clear; where
it is not, the file is refused by what contradicts.

A byte-level vocabulary's text is cut into words before its merges apply, by names and expressions of llama.cpp
(`src/llama-vocab.cpp`, where they carry the comment "original regex").
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.layer_sizes import NEMOTRON
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_runtime.errors import TokenizerError
from reader_edge_runtime.untrusted.gguf_header import OTHER

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDINGS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_GPT4 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_ENDINGS}"
_QWEN = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_ENDINGS}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Words with at most one change from capitals to small letters.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?" + _UPPER + "*" + _LOWER + "+%s|" + r"[^\r\n\p{L}\p{N}]?" + _UPPER + "+" + _LOWER + "*%s|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = _CASED % (f"{_CONTRACTIONS}?", f"{_CONTRACTIONS}?", r"\p{N}{1,3}")
_TEKKEN = _CASED % ("", "", _DIGIT)
_SEED_CODER = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_TO_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CASED_LETTERS = (  # those that DeepSeek V2's rule names, fewer than Unicode has by now
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
# From ":" to "~" are letters of ASCII too, so that others in a word are cut off, as by the model's own tokenizer.
_DEEPSEEK_V2_MARKS = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_LEVEL, SENTENCE_PIECE, MERGED_PIECES = "gpt2", "llama", "gemma4"  # values of tokenizer.ggml.model
_ALPHABET = frozenset(pre_tokenizers.ByteLevel.alphabet())
_BYTE_SPACE = "\u0120"  # a space in that alphabet
_UNKNOWN_RULES = ("", "default")
# The only rules of these architectures, whose older files name none.
_RULES = {"gpt-oss": "gpt-4o", "lfm2": "lfm2", "lfm2moe": "lfm2", "mistral3": "tekken"}
_RULES |= dict.fromkeys(NEMOTRON, "llama-bpe")
# As llama.cpp calls Llama 3's rule in folders of Mistral's vocabulary, which Mistral's own have not.
_PIXTRAL = "pixtral"
_LLAMA3_IDS = {"<|begin_of_text|>": 128000, "<|start_header_id|>": 128006, "<|eot_id|>": 128009}
# Of words that merges make, how many a rule may cut apart, which could then come of no text. A model's own cuts up to
# a ninetieth (of Qwen 2: marks of scripts) and no numbers, another's up to a fifth.
_MAX_CUT, _MAX_CUT_UNKNOWN, _FEWEST_CUT, _FEWEST_NUMBERS = 1 / 40, 1 / 1000, 8, 4
_MAX_WORDS, _MAX_WORD_CHARACTERS = 1 << 14, 1 << 10
_MAX_RISING = 1 / 100  # of merges whose pieces' scores rise, as they do where a converter changed a few
# Entries that have only changed places leave all others where they are; one that was put in moves those behind it.
_MAX_SWAPPED, _LEAST_BESIDE = 16, 32
# Of tokens that text is made of, how many no merge may make; the vocabularies of models have none but marks.
_MAX_UNMADE = 1 / 20
MARK = re.compile(r"<[^\s<>]+>|\[[^\s\[\]]+\]")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """expressions: applied one after the other. keeps_words: words that are tokens are not cut further.

    adds_bos: a text begins with the token for it, where the file does not say. composes: text is put in Unicode's form
    NFC before, which llama.cpp leaves out, and the models' own tokenizers do.
    """

    expressions: tuple[str, ...]
    keeps_words: bool = False
    adds_bos: bool = False
    composes: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        cuts = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in self.expressions]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.composes else None


_KINDS = {
    ("default",): PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ("gpt-2", "phi-2", "mellum", "a.x-4.0", "trillion", "exaone4"): PreTokenizer((_GPT2,)),
    ("smollm", "starcoder", "refact", "minerva-7b"): PreTokenizer((_DIGIT, _GPT2)),
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "midm-2.0", "lfm2"): PreTokenizer(
        (_GPT4,), keeps_words=True, adds_bos=True
    ),
    ("dbrx", "smaug-bpe", "chatglm-bpe"): PreTokenizer((_GPT4,)),
    ("glm4",): PreTokenizer((_GPT4,), keeps_words=True),
    ("qwen2",): PreTokenizer((_QWEN,), composes=True),
    ("qwen35",): PreTokenizer((_QWEN35,), composes=True),
    ("deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"): PreTokenizer((_QWEN,)),
    ("tekken",): PreTokenizer((_TEKKEN,), keeps_words=True, adds_bos=True),
    ("gpt-4o",): PreTokenizer((_GPT4O,)),
    ("seed-coder",): PreTokenizer((_SEED_CODER,)),
    ("deepseek-coder",): PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_TO_HANGUL, _DIGIT)),
    ("deepseek-llm",): PreTokenizer(
        (
            *(r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+", rf"\s?{_DEEPSEEK_V2_MARKS}", r"\s+$"),
            *(_HAN_TO_HANGUL, _DIGIT),
        )
    ),
    ("deepseek-v3", "hunyuan-dense"): PreTokenizer((r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK_V3)),
}


PRE_TOKENIZERS = {name: kind for names, kind in _KINDS.items() for name in names}


@dataclass(frozen=True, slots=True)
class TokenizerKind:
    """kind: BYTE_LEVEL, SENTENCE_PIECE or MERGED_PIECES, which are pieces joined by merges.

    pre: a key of PRE_TOKENIZERS, with BYTE_LEVEL. merges: "LEFT RIGHT", best first, without scores. scores: of tokens,
    with SENTENCE_PIECE. adds_space: whether a text is read as if a space came before it.
    """

    kind: str
    pre: str = ""
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    adds_space: bool = False


def kind_of(file: GgufFile, values: Metadata, tokens: list[str], text_ids: list[int]) -> TokenizerKind:
    """values: of the tokenizer. text_ids: tokens that text is made of. Raises TokenizerError, GgufError."""
    model = _one_of(file, "tokenizer.ggml.model", values.text("model"), (BYTE_LEVEL, SENTENCE_PIECE, MERGED_PIECES))
    merges = values.texts("merges") if model != SENTENCE_PIECE or values.has("merges") else []
    if len(set(merges)) < len(merges):
        _refuse(file, f"lists {len(merges) - len(set(merges))} of its {len(merges)} merges more than once")
    spelt = frozenset("".join(merges)) - {" "} if merges else frozenset("".join(tokens[i] for i in text_ids))
    is_pieces, is_bytes = not spelt <= _ALPHABET, spelt <= _ALPHABET and _BYTE_SPACE in spelt
    pre = values.text("pre", "")
    if model == BYTE_LEVEL and not is_pieces:
        return _byte_level(file, pre, tokens, merges)
    if is_bytes:
        if model == MERGED_PIECES or not merges or pre in _UNKNOWN_RULES:
            _refuse(file, f"names its tokenizer {model!r}, but has tokens of bytes, as 'gpt2' has")
        return _byte_level(file, pre, tokens, merges)
    if model == MERGED_PIECES:
        if values.flag("add_space_prefix", False):
            _refuse(file, f"names its tokenizer {model!r}, but wants a space before a text, which this kind has not")
        return TokenizerKind(MERGED_PIECES, merges=merges)
    adds_space = _adds_space(file, values, model, pre)
    if model == BYTE_LEVEL:
        return TokenizerKind(MERGED_PIECES, merges=merges, adds_space=adds_space)
    scores = values.numbers("scores") if not merges or values.has("scores") else []
    if scores and len(scores) != len(tokens):
        raise TokenizerError(f"'{file.path}' gives scores for {len(scores)} of {len(tokens)} tokens: {OTHER}.")
    if _has_ranks(file, tokens, text_ids, merges, scores):
        return TokenizerKind(SENTENCE_PIECE, scores=scores, adds_space=adds_space)
    return TokenizerKind(MERGED_PIECES, merges=merges, adds_space=adds_space)


def check_order(file: GgufFile, kind: TokenizerKind, tokens: list[str], text_ids: list[int]) -> None:
    """Raise TokenizerError where ids are not in the order of merges or scores, as tokenizers are trained."""
    if kind.scores:
        what, ranks = "scores of its pieces", [-kind.scores[i] for i in text_ids if len(tokens[i]) > 1]
    else:
        ids, made = {tokens[i]: i for i in text_ids}, dict.fromkeys(map(joined, kind.merges))
        unmade = [token for token in ids if len(token) > 1 and token not in made and not MARK.fullmatch(token)]
        if kind.kind == BYTE_LEVEL and len(unmade) > max(_FEWEST_CUT, _MAX_UNMADE * len(ids)):
            _refuse(file, f"has no merges for {len(unmade)} of its {len(ids)} tokens, such as {unmade[0]!r:.80}")
        symbols = map(chr, range(0x21, 0x7F)) if kind.kind == BYTE_LEVEL else ()
        what, ranks = "merges", [ids[token] for token in (*symbols, *made) if token in ids]
    num_falls = sum(second < first for first, second in pairwise(ranks))
    num_moved = sum(rank != other for rank, other in zip(ranks, sorted(ranks), strict=True))
    if num_falls > max(_FEWEST_CUT, _MAX_RISING * len(ranks)):
        _refuse(file, f"has {what} and tokens in different orders ({num_falls} of {len(ranks)} come before their turn)")
    if 0 < num_moved <= min(_MAX_SWAPPED, len(ranks) // _LEAST_BESIDE):
        _refuse(file, f"has {what} and tokens in different orders ({num_moved} of {len(ranks)} have changed places)")


def text_tokens(kind: TokenizerKind, tokens: list[str]) -> set[str]:
    """Tokens that text surely makes, whatever the file calls them; no marks, which it may spell by chance."""
    if kind.scores:
        ranks = zip(tokens[1:], kind.scores, kind.scores[1:], kind.scores[2:], strict=False)
        found = {token for token, before, score, behind in ranks if before > score > behind}
    else:
        found = {text for merge in kind.merges for text in (*parts_of(merge), joined(merge))}
    return {token for token in found | _ALPHABET | {"\u2581"} if not MARK.fullmatch(token.removeprefix("\u2581"))}


def parts_of(merge: str) -> tuple[str, str]:
    """What a merge joins: "LEFT RIGHT"."""
    left, _, right = merge[1:].partition(" ")
    return merge[:1] + left, right


def joined(merge: str) -> str:
    """What a merge makes."""
    return "".join(parts_of(merge))


def _one_of(file: GgufFile, key: str, name: str, known: tuple[str, ...]) -> str:
    if name not in known:
        problem = f"gives {key} as {name!r:.80}, which is not known here" if name else f"gives no {key}"
        remedy = "give the model in Hugging Face format"
        raise TokenizerError(f"'{file.path}' {problem}; known are: {', '.join(known)}: {remedy}.")
    return name


def _refuse(file: GgufFile, problem: str) -> NoReturn:
    raise TokenizerError(f"'{file.path}' {problem}: {OTHER}.")


def _byte_level(file: GgufFile, pre: str, tokens: list[str], merges: list[str]) -> TokenizerKind:
    """With the rule that the file names; where that is none or `default`, with that of its family."""
    is_llama3 = all(len(tokens) > token_id and tokens[token_id] == token for token, token_id in _LLAMA3_IDS.items())
    architecture = str(file.metadata.get("general.architecture"))
    family = "llama-bpe" if is_llama3 else _RULES.get(architecture, pre)
    rule = family if pre in _UNKNOWN_RULES or (pre == _PIXTRAL and architecture in NEMOTRON) else pre
    _one_of(file, "tokenizer.ggml.pre", rule, tuple(PRE_TOKENIZERS))
    words = _words(merges)
    cutter = PRE_TOKENIZERS[rule].pre_tokenizer()
    cut = [word for word in words if len(cutter.pre_tokenize_str(word)) > 1]
    numbers = [word for word in cut if word.isascii() and word.strip().isdigit()]
    share = _MAX_CUT_UNKNOWN if rule in _UNKNOWN_RULES else _MAX_CUT
    if len(cut) > max(_FEWEST_CUT, share * len(words)) or len(numbers) > _FEWEST_NUMBERS:
        _refuse(
            file,
            f"gives tokenizer.ggml.pre as {rule!r}, by which {len(cut)} of {len(words)} of its tokens come of no text, "
            f"such as {(numbers or cut)[0]!r:.40}",
        )
    return TokenizerKind(BYTE_LEVEL, rule, merges)


def _words(merges: list[str]) -> list[str]:
    """Texts of tokens that merges make, of all ranks, so many as are quickly looked at; those of whole characters."""
    some = merges[:: -(-len(merges) // _MAX_WORDS) or 1]
    decoder = decoders.ByteLevel()
    words = [decoder.decode([joined(merge)]) for merge in some if len(merge) <= _MAX_WORD_CHARACTERS]
    return [word for word in words if "\ufffd" not in word]


def _adds_space(file: GgufFile, values: Metadata, model: str, pre: str) -> bool:
    """As the file says; where it does not, Gemma adds none, and other SentencePiece does, as in llama.cpp."""
    is_gemma = pre == MERGED_PIECES or str(file.metadata.get("general.architecture")).startswith("gemma")
    if model == BYTE_LEVEL and not is_gemma and not values.has("add_space_prefix"):
        _refuse(
            file,
            "names its tokenizer 'gpt2', but has merges of pieces, and no add_space_prefix, without which nobody knows "
            "whether a space goes before a text",
        )
    return values.flag("add_space_prefix", not is_gemma)


def _has_ranks(
    file: GgufFile, tokens: list[str], text_ids: list[int], merges: list[str], scores: Sequence[float]
) -> bool:
    """Whether scores rank the pieces, rather than merges; refuse a file where neither does, or they contradict."""
    ranks = [scores[i] for i in text_ids if len(tokens[i]) > 1] if scores else []
    if not _rank(ranks):
        if not merges and len(ranks) > 1:
            _refuse(file, f"has no merges, and scores that rank no pieces (from {ranks[0]:g} to {ranks[-1]:g})")
        return not merges
    if 2 * sum(score.is_integer() for score in ranks) < len(ranks):
        _refuse(file, f"has scores of a Unigram tokenizer ({ranks[0]:g} and so on), which is cut by other rules")
    if not _agree(merges, dict(zip(tokens, scores, strict=True))):
        _refuse(file, "has merges and scores of its pieces in different orders")
    return True


def _rank(scores: Sequence[float]) -> bool:
    """Whether scores fall with the ids, as SentencePiece's do; ids in their place rise, and one number does neither."""
    return sum((second < first) - (second > first) for first, second in pairwise(scores)) > 0


def _agree(merges: list[str], scores: dict[str, float]) -> bool:
    """Whether the pieces that merges make have scores in the order of the merges."""
    known = [score for merge in merges if (score := scores.get(joined(merge))) is not None]
    return sum(second > first for first, second in pairwise(known)) <= _MAX_RISING * len(known)

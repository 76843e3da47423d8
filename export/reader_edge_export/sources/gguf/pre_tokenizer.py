"""How a byte-level vocabulary's text is cut into words before its merges apply, by the names of llama.cpp.

Each is a row of regular expressions: what the first matches and what lies between are pieces, which the next cuts
further. Names and expressions are those of `src/llama-vocab.cpp`, where they carry the comment "original regex" in the
form of the models' own tokenizer.json.
"""

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

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
_HAN_TO_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


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
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "midm-2.0", "lfm2"): PreTokenizer(
        (_GPT4,), keeps_words=True, adds_bos=True
    ),
    ("dbrx", "smaug-bpe"): PreTokenizer((_GPT4,)),
    ("qwen2",): PreTokenizer((_QWEN,), composes=True),
    ("qwen35",): PreTokenizer((_QWEN35,), composes=True),
    ("deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"): PreTokenizer((_QWEN,)),
    ("tekken",): PreTokenizer((_TEKKEN,), keeps_words=True, adds_bos=True),
    ("gpt-4o",): PreTokenizer((_GPT4O,)),
    ("seed-coder",): PreTokenizer((_SEED_CODER,)),
    ("deepseek-coder",): PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_TO_HANGUL, _DIGIT)),
    ("deepseek-v3",): PreTokenizer((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_V3)),
}
PRE_TOKENIZERS = {name: kind for names, kind in _KINDS.items() for name in names}

"""What a GGUF file says of text: its tokens and their kinds, and how it begins and ends.

Defaults are those of llama.cpp (`src/llama-vocab.cpp`), which knows them by the kind of tokenizer.
"""

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from reader_edge_export.sources.ends import end_ids
from reader_edge_export.sources.gguf.gguf_file import OTHER, GgufFile
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_export.sources.gguf.pre_tokenizer import PRE_TOKENIZERS
from reader_edge_runtime.errors import TokenizerError

T = TypeVar("T")

BYTE_LEVEL, SENTENCE_PIECE, MERGED_PIECES = "gpt2", "llama", "gemma4"  # values of tokenizer.ggml.model
_MAX_TOKEN_CHARACTERS = 1 << 10
_MAX_TEMPLATES = 16
_SENTENCE_PIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}
_FILLER = re.compile(r"\[PAD(\d{1,9})\]", re.ASCII)
# Tokens that no text of a decoder needs, and what only other kinds of tokenizers read.
_IGNORED = frozenset(
    {"pre", "merges", "scores", "token_type", "token_type_count", "remove_extra_whitespaces", "add_space_prefix"}
    | {
        f"{name}_token_id"
        for name in ("padding", "seperator", "separator", "cls", "mask", "prefix", "suffix", "middle")
    }
    | {f"fim_{name}_token_id" for name in ("pre", "suf", "mid", "pad", "rep", "sep")}
    | {f"{name}_token_ids" for name in ("bos", "unknown", "padding", "seperator", "cls", "mask")}
)
_INERT = {f"add_{name}_token": False for name in ("unknown", "padding", "seperator", "sep", "cls", "mask")}


class TokenKind(IntEnum):
    """Values of tokenizer.ggml.token_type."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The tokens of a model, by id.

    kind: BYTE_LEVEL, SENTENCE_PIECE or MERGED_PIECES, which are pieces joined by merges. pre: a key of PRE_TOKENIZERS,
    with BYTE_LEVEL. token_kinds: see TokenKind.
    merges: "LEFT RIGHT", best first, without scores. scores: of tokens, with SENTENCE_PIECE. end_ids: tokens that end
    an answer, that of a text first. adds_bos, adds_eos: whether a text gets them. adds_space: whether a text is read as
    if a space came before it. strips_behind: whether special tokens swallow white space behind them. first_filler: from
    here on Ollama's converter made tokens up.
    """

    kind: str
    pre: str
    tokens: list[str]
    token_kinds: list[int]
    merges: list[str]
    scores: list[float]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: tuple[int, ...]
    adds_bos: bool
    adds_eos: bool
    adds_space: bool
    strips_behind: bool
    first_filler: int

    def is_filler(self, token_id: int) -> bool:
        """Whether a converter made this token up because the model's own tokenizer has none of its id."""
        return token_id >= self.first_filler or self.tokens[token_id] == f"[PAD{token_id}]"  # of whichever kind


def vocabulary_of(file: GgufFile) -> GgufVocabulary:
    """Read and check what a file says of its tokenizer. Raises TokenizerError, GgufError for values of other kinds."""
    values = Metadata(file, "tokenizer.ggml")
    kind = _one_of(file, "tokenizer.ggml.model", values.text("model"), (BYTE_LEVEL, SENTENCE_PIECE, MERGED_PIECES))
    is_byte_level, has_scores = kind == BYTE_LEVEL, kind == SENTENCE_PIECE
    # Where the name is missing llama.cpp takes a default, and warns that the model will be the worse for it.
    pre = _one_of(file, "tokenizer.ggml.pre", values.text("pre", ""), tuple(PRE_TOKENIZERS)) if is_byte_level else ""
    tokens = _tokens(file, values)
    normal = [int(TokenKind.NORMAL)] * len(tokens)
    token_kinds = (
        _for_each(file, tokens, "token_type", values.sizes("token_type")) if values.has("token_type") else normal
    )
    ids = _special_ids(file, values, kind, len(tokens))
    named = [ids["eos"], *_further_ends(file, values, len(tokens)), ids["eot"], ids["eom"]]
    control = {token_id for token_id, kind in enumerate(token_kinds) if kind == TokenKind.CONTROL}
    vocabulary_ids = {token: token_id for token_id, token in enumerate(tokens)}
    name = Metadata(file, "general").text("name", "").lower()
    vocabulary = GgufVocabulary(
        kind=kind,
        pre=pre,
        tokens=tokens,
        token_kinds=token_kinds,
        merges=[] if has_scores else values.texts("merges"),
        scores=[] if not has_scores else _for_each(file, tokens, "scores", values.numbers("scores")),
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        unknown_id=ids["unknown"],
        end_ids=end_ids((end for end in named if end is not None), vocabulary_ids, control),
        adds_bos=values.flag("add_bos_token", PRE_TOKENIZERS[pre].adds_bos if is_byte_level else True),
        adds_eos=values.flag("add_eos_token", False),
        adds_space=has_scores and values.flag("add_space_prefix", True),
        first_filler=_first_filler(tokens),
        strips_behind="phi-3" in name or "phi3" in name,  # the format has no word for it, llama.cpp goes by the name
    )
    if (vocabulary.adds_bos and vocabulary.bos_id is None) or (vocabulary.adds_eos and vocabulary.eos_id is None):
        raise TokenizerError(f"'{file.path}' wants a token before or behind a text, but names none: {OTHER}.")
    values.check_all_asked(_IGNORED, _INERT)
    return vocabulary


def chat_template_of(file: GgufFile) -> str | dict[str, str] | None:
    """The file's template for conversations, or several by name as transformers has them; None without one."""
    values = Metadata(file, "tokenizer")
    default = values.text("chat_template", "")
    names = values.texts("chat_templates") if values.has("chat_templates") else []
    if len(names) > _MAX_TEMPLATES:
        raise TokenizerError(f"'{file.path}' has {len(names)} chat templates, more than are read: {OTHER}.")
    named = {name: values.text(f"chat_template.{name}", "") for name in names}
    if default and named:
        return {**named, "default": default}
    return default or named or None


def _one_of(file: GgufFile, key: str, name: str, known: tuple[str, ...]) -> str:
    if name not in known:
        raise TokenizerError(
            f"'{file.path}' gives {key} as {name!r:.80}, which is not known here; known are: {', '.join(known)}."
        )
    return name


def _tokens(file: GgufFile, values: Metadata) -> list[str]:
    tokens = [token or f"[EMPTY_{token_id}]" for token_id, token in enumerate(values.texts("tokens"))]
    if not tokens:
        raise TokenizerError(f"'{file.path}' has no tokens: {OTHER}.")
    ids: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        if (first := ids.setdefault(token, token_id)) != token_id:
            raise TokenizerError(f"'{file.path}' has the token {token!r:.80} as {first} and as {token_id}: {OTHER}.")
    longest = max(tokens, key=len)
    if len(longest) > _MAX_TOKEN_CHARACTERS:
        raise TokenizerError(f"'{file.path}' has a token of {len(longest)} characters, more than are read: {OTHER}.")
    return tokens


def _for_each(file: GgufFile, tokens: list[str], key: str, values: list[T]) -> list[T]:
    if len(values) != len(tokens):
        raise TokenizerError(f"'{file.path}' gives {key} for {len(values)} of {len(tokens)} tokens: {OTHER}.")
    return values


def _special_ids(file: GgufFile, values: Metadata, kind: str, num_tokens: int) -> dict[str, int | None]:
    """Ids by name; those the file does not name are None, or what SentencePiece takes."""
    ids: dict[str, int | None] = {}
    for name in ("bos", "eos", "eot", "eom", "unknown"):
        key = f"{name}_token_id"
        default = _SENTENCE_PIECE_IDS.get(name) if kind == SENTENCE_PIECE else None
        ids[name] = values.size(key, default, least=0) if values.has(key) or default is not None else None
        if (ids[name] or 0) >= num_tokens:
            raise TokenizerError(f"'{file.path}' gives {key} as {ids[name]} of {num_tokens} tokens: {OTHER}.")
    return ids


def _further_ends(file: GgufFile, values: Metadata, num_tokens: int) -> list[int]:
    """The list of ends that Ollama's converter takes over from generation_config.json."""
    ends = values.sizes("eos_token_ids") if values.has("eos_token_ids") else []
    if any(not 0 <= end < num_tokens for end in ends):
        raise TokenizerError(f"'{file.path}' gives eos_token_ids as {ends!r:.80} of {num_tokens} tokens: {OTHER}.")
    return ends


def _first_filler(tokens: list[str]) -> int:
    """Where a run of [PAD0], [PAD1] and so on begins that ends the vocabulary; their number without one."""
    last = _FILLER.fullmatch(tokens[-1])
    first = len(tokens) - 1 - int(last[1]) if last else len(tokens)
    is_run = first >= 0 and all(token == f"[PAD{number}]" for number, token in enumerate(tokens[max(0, first) :]))
    return first if is_run else len(tokens)

"""What a GGUF file says of text: its tokens and their kinds, and how it begins and ends.

Defaults are those of llama.cpp (`src/llama-vocab.cpp`), which knows them by the kind of tokenizer.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from reader_edge_export.sources.generation import end_ids
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_export.sources.gguf.tokenizer_kind import (
    BYTE_LEVEL,
    MERGED_PIECES,
    PRE_TOKENIZERS,
    SENTENCE_PIECE,
    TokenizerKind,
    check_order,
    kind_of,
    text_tokens,
)
from reader_edge_runtime.errors import TokenizerError
from reader_edge_runtime.untrusted.gguf_header import OTHER

_MAX_TOKEN_CHARACTERS = 1 << 10
_MAX_TEMPLATES = 16
_SENTENCE_PIECE_IDS = {"bos": (1, "<s>"), "eos": (2, "</s>"), "unknown": (0, "<unk>")}
BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
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
_RERANK = "rerank"  # a template with {query} and {document}, which is none of conversations
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


TEXT_KINDS = (TokenKind.NORMAL, TokenKind.UNDEFINED, TokenKind.UNUSED)


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The tokens of a model, by id.

    token_kinds: see TokenKind. end_ids: tokens that end an answer, that of a text first. adds_bos, adds_eos: whether a
    text gets them. strips_behind: whether special tokens swallow white space behind them. first_filler: from here on
    Ollama's converter made tokens up.
    """

    kind: TokenizerKind
    tokens: list[str]
    token_kinds: list[int]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: tuple[int, ...]
    adds_bos: bool
    adds_eos: bool
    strips_behind: bool
    first_filler: int

    def is_filler(self, token_id: int) -> bool:
        """Whether a converter made this token up because the model's own tokenizer has none of its id."""
        made_up = (f"[PAD{token_id}]", f"[EMPTY_{token_id}]")  # of whichever kind; the second by `_tokens`
        return token_id >= self.first_filler or self.tokens[token_id] in made_up


def vocabulary_of(file: GgufFile) -> GgufVocabulary:
    """Read and check what a file says of its tokenizer. Raises TokenizerError, GgufError for values of other kinds."""
    values = Metadata(file, "tokenizer.ggml")
    tokens = _tokens(file, values)
    token_kinds = _token_kinds(file, values, tokens)
    text_ids = [token_id for token_id, kind in enumerate(token_kinds) if kind in TEXT_KINDS]
    kind = kind_of(file, values, tokens, text_ids)
    check_order(file, kind, tokens, text_ids)
    ids, further_ends = _special_ids(file, values, tokens), _further_ends(file, values, len(tokens))
    named = [ids["eos"], *further_ends, ids["eot"], ids["eom"]]
    uses = [(f"{name}_token_id", token_id) for name, token_id in ids.items() if token_id is not None]
    uses += [("eos_token_ids", token_id) for token_id in further_ends]
    text = text_tokens(kind, tokens)
    if kind.kind != BYTE_LEVEL:  # whose bytes have symbols instead
        text |= set(filter(BYTE_TOKEN.fullmatch, tokens))
    _check_text(file, text, tokens, token_kinds, uses)
    control = {token_id for token_id, kind in enumerate(token_kinds) if kind == TokenKind.CONTROL}
    vocabulary_ids = {token: token_id for token_id, token in enumerate(tokens)}
    name = Metadata(file, "general").text("name", "").lower()
    adds_bos = values.flag("add_bos_token", PRE_TOKENIZERS[kind.pre].adds_bos if kind.kind == BYTE_LEVEL else True)
    is_gemma4 = MERGED_PIECES in (values.text("model"), values.text("pre", ""))  # whose files often say no, wrongly
    vocabulary = GgufVocabulary(
        kind=kind,
        tokens=tokens,
        token_kinds=token_kinds,
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        unknown_id=ids["unknown"],
        end_ids=end_ids((end for end in named if end is not None), vocabulary_ids, control),
        adds_bos=adds_bos or is_gemma4,
        adds_eos=values.flag("add_eos_token", False),
        first_filler=_first_filler(tokens),
        strips_behind="phi-3" in name or "phi3" in name,  # the format has no word for it, llama.cpp goes by the name
    )
    if (vocabulary.adds_bos and vocabulary.bos_id is None) or (vocabulary.adds_eos and vocabulary.eos_id is None):
        raise TokenizerError(f"'{file.path}' wants a token before or behind a text, but names none: {OTHER}.")
    values.check_all_read(_IGNORED, _INERT)
    return vocabulary


def chat_template_of(file: GgufFile) -> str | dict[str, str] | None:
    """The file's template for conversations, or several by name as transformers has them; None without one."""
    values = Metadata(file, "tokenizer")
    default = values.text("chat_template", "")
    names = values.texts("chat_templates") if values.has("chat_templates") else []
    if len(names) > _MAX_TEMPLATES:
        raise TokenizerError(f"'{file.path}' has {len(names)} chat templates, more than are read: {OTHER}.")
    named = {name: values.text(f"chat_template.{name}", "") for name in names if name != _RERANK}
    if default and named:
        return {**named, "default": default}
    return default or named or None


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


def _token_kinds(file: GgufFile, values: Metadata, tokens: list[str]) -> list[int]:
    """Of all tokens; without them all are normal."""
    kinds = values.sizes("token_type") if values.has("token_type") else [int(TokenKind.NORMAL)] * len(tokens)
    if len(kinds) != len(tokens):
        raise TokenizerError(f"'{file.path}' gives token_type for {len(kinds)} of {len(tokens)} tokens: {OTHER}.")
    if others := set(kinds) - set(TokenKind):
        raise TokenizerError(f"'{file.path}' has a token_type of {min(others)}, which is none: {OTHER}.")
    if not set(kinds) & {*TEXT_KINDS, TokenKind.BYTE}:
        raise TokenizerError(f"'{file.path}' calls all its tokens special, so that no text has one: {OTHER}.")
    for token, kind in zip(tokens, kinds, strict=True):
        if kind == TokenKind.BYTE and not BYTE_TOKEN.fullmatch(token):
            raise TokenizerError(f"'{file.path}' calls {token!r:.80} the token of a byte, which it is not: {OTHER}.")
    return kinds


def _check_text(
    file: GgufFile, text: set[str], tokens: list[str], kinds: list[int], uses: Iterable[tuple[str, int]]
) -> None:
    """Raise TokenizerError where a token of text is called special, or frames it: texts would lose it.

    text: tokens that text makes. uses: (key, id) of tokens that begin or end a text, or stand for what is unknown.
    """
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN) and token in text:
            name = TokenKind(kind).name.lower()
            raise TokenizerError(f"'{file.path}' calls {token!r:.80} {name}, which text is made of: {OTHER}.")
    for key, token_id in uses:
        kind, token = kinds[token_id], tokens[token_id]
        if kind == TokenKind.BYTE or (kind in TEXT_KINDS and token in text):
            raise TokenizerError(f"'{file.path}' gives {key} as {token!r:.80}, which text is made of: {OTHER}.")


def _special_ids(file: GgufFile, values: Metadata, tokens: list[str]) -> dict[str, int | None]:
    """Ids by name; those that the file does not name are None, or SentencePiece's where the token is called so."""
    is_sentence_piece, ids = values.text("model") == SENTENCE_PIECE, dict[str, int | None]()
    for name in ("bos", "eos", "eot", "eom", "unknown"):
        key = f"{name}_token_id"
        ids[name] = values.size(key, least=0) if values.has(key) else None
        if (ids[name] or 0) >= len(tokens):
            raise TokenizerError(f"'{file.path}' gives {key} as {ids[name]} of {len(tokens)} tokens: {OTHER}.")
        usual_id, usual = _SENTENCE_PIECE_IDS.get(name, (0, None))
        if not values.has(key) and is_sentence_piece and tokens[usual_id : usual_id + 1] == [usual]:
            ids[name] = usual_id
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

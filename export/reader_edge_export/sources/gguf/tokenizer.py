"""The tokenizer that a vocabulary describes, as one of the `tokenizers` library."""

from collections.abc import Iterator

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from reader_edge_export.sources.gguf.gguf_file import OTHER
from reader_edge_export.sources.gguf.pre_tokenizer import PRE_TOKENIZERS
from reader_edge_export.sources.gguf.vocabulary import BYTE_LEVEL, GgufVocabulary, TokenKind
from reader_edge_runtime.errors import TokenizerError

_SPACE = "\u2581"  # SentencePiece's mark
_SPECIAL = (TokenKind.CONTROL, TokenKind.UNKNOWN)
_MAX_ADDED_TOKENS, _MAX_ADDED_CHARACTERS = 1 << 14, 1 << 20
_MAX_MERGES = 1 << 20  # of SentencePiece's: Gemma has half as many
# Of SentencePiece's, of which every cut is looked up; Gemma's quarter of a million have some two million characters.
_MAX_PIECE_CHARACTERS, _MAX_PIECES_CHARACTERS = 128, 1 << 22
# Phi-3's tokens that leave the white space behind them alone.
_NEVER_STRIPPED = ("<unk>", "<s>", "<|endoftext|>")


def build_tokenizer(vocabulary: GgufVocabulary) -> Tokenizer:
    """A fast tokenizer that gives the ids of the model's own. Raises TokenizerError for one that cannot be."""
    try:
        tokenizer = _byte_level(vocabulary) if vocabulary.kind == BYTE_LEVEL else _sentence_piece(vocabulary)
        _add_tokens(tokenizer, vocabulary)
    except TokenizerError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"The GGUF tokenizer cannot be built ({error!s:.200}): {OTHER}.") from error
    tokenizer.post_processor = _frame(vocabulary)
    return tokenizer


def _byte_level(vocabulary: GgufVocabulary) -> Tokenizer:
    kind = PRE_TOKENIZERS[vocabulary.pre]
    merges = [_parts(merge) for merge in vocabulary.merges]
    tokenizer = Tokenizer(models.BPE(_ids(vocabulary), merges, ignore_merges=kind.keeps_words))
    if (normalizer := kind.normalizer()) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = kind.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(vocabulary: GgufVocabulary) -> Tokenizer:
    """Pieces joined by merges, or by their scores as merges; bytes as a fallback."""
    unknown = None if vocabulary.unknown_id is None else vocabulary.tokens[vocabulary.unknown_id]
    merges = [_parts(merge) for merge in vocabulary.merges] or _merges(vocabulary)
    model = models.BPE(_ids(vocabulary), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    marks: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    unmarks = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.adds_space:
        marks.insert(0, normalizers.Prepend(_SPACE))
        unmarks.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(marks)
    tokenizer.decoder = decoders.Sequence(unmarks)
    return tokenizer


def _merges(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, by its score, best first; equal ones as transformers orders them.

    SentencePiece joins the two neighbours whose piece has the best score, the leftmost first, which is the same.
    """
    pieces = {vocabulary.tokens[token_id]: token_id for token_id in _normal_ids(vocabulary)}
    if (num_characters := sum(map(len, pieces))) > _MAX_PIECES_CHARACTERS:
        raise TokenizerError(
            f"The GGUF file has pieces of {num_characters} characters together, more than are read: {OTHER}."
        )
    ranked = []
    for piece, token_id in pieces.items():
        if len(piece) > _MAX_PIECE_CHARACTERS:
            raise TokenizerError(f"The GGUF file has a piece of {len(piece)} characters, more than are read: {OTHER}.")
        score = vocabulary.scores[token_id]
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                ranked.append((-score, -len(left), -len(right), token_id, left, right))
        if len(ranked) > _MAX_MERGES:
            raise TokenizerError(f"The GGUF file's pieces join in more than {_MAX_MERGES} ways: {OTHER}.")
    return [(left, right) for *_, left, right in sorted(ranked)]


def _normal_ids(vocabulary: GgufVocabulary) -> Iterator[int]:
    """Ids of the tokens that text is made of."""
    kinds = (TokenKind.NORMAL, TokenKind.UNDEFINED, TokenKind.UNUSED)
    ids = _ids(vocabulary).values()
    return (i for i in ids if vocabulary.token_kinds[i] in kinds and not vocabulary.is_filler(i))


def _ids(vocabulary: GgufVocabulary) -> dict[str, int]:
    """Token -> id, without what fills the end."""
    num_tokens = len(vocabulary.tokens)
    while num_tokens and vocabulary.is_filler(num_tokens - 1):
        num_tokens -= 1
    return {token: token_id for token_id, token in enumerate(vocabulary.tokens[:num_tokens])}


def _parts(merge: str) -> tuple[str, str]:
    left, _, right = merge[1:].partition(" ")
    return merge[:1] + left, right


def _add_tokens(tokenizer: Tokenizer, vocabulary: GgufVocabulary) -> None:
    """Tokens that are found in a text before all else; special ones are left out of answers."""
    framing = {vocabulary.bos_id, vocabulary.eos_id, *vocabulary.end_ids}
    added = []
    for token_id, token in enumerate(vocabulary.tokens):
        kind = vocabulary.token_kinds[token_id]
        is_special = kind in _SPECIAL or token_id in framing
        if (is_special or kind == TokenKind.USER_DEFINED) and not vocabulary.is_filler(token_id):
            strips = vocabulary.strips_behind and is_special and token not in _NEVER_STRIPPED
            added.append(AddedToken(token, special=is_special, normalized=False, rstrip=strips))
    num_characters = sum(len(token.content) for token in added)
    if len(added) > _MAX_ADDED_TOKENS or num_characters > _MAX_ADDED_CHARACTERS:
        raise TokenizerError(
            f"The GGUF file has {len(added)} special tokens of {num_characters} characters together, more than are "
            f"read: {OTHER}."
        )
    tokenizer.add_tokens(added)


def _frame(vocabulary: GgufVocabulary) -> processors.PostProcessor:
    """What a text begins and ends with."""
    ids = {"first": vocabulary.bos_id, "last": vocabulary.eos_id}
    template = ["first"] * vocabulary.adds_bos + ["$A"] + ["last"] * vocabulary.adds_eos
    special = [
        {"id": name, "ids": [token_id], "tokens": [vocabulary.tokens[token_id]]}
        for name, token_id in ids.items()
        if token_id is not None and name in template
    ]
    return processors.TemplateProcessing(single=template, pair=[*template, "$B:1"], special_tokens=special)

"""The tokenizer that a vocabulary describes, as one of the `tokenizers` library."""

from collections.abc import Iterator

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from reader_edge_export.sources.gguf.tokenizer_kind import BYTE_LEVEL, MARK, PRE_TOKENIZERS, SENTENCE_PIECE, parts_of
from reader_edge_export.sources.gguf.vocabulary import BYTE_TOKEN, TEXT_KINDS, GgufVocabulary, TokenKind
from reader_edge_runtime.errors import TokenizerError
from reader_edge_runtime.untrusted.gguf_header import OTHER

_SPACE = "\u2581"  # SentencePiece's mark
_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))
# Some vocabularies lack bytes that no text of theirs had, such as control characters; none lacks these.
_SYMBOLS = frozenset("\u0120\u010a" + "".join(map(chr, range(0x21, 0x7F))))
_SPECIAL = (TokenKind.CONTROL, TokenKind.UNKNOWN)
_MAX_ADDED_TOKENS, _MAX_ADDED_CHARACTERS = 1 << 14, 1 << 20
# Of SentencePiece's, how many no earlier pieces join: those that a maker added. Baichuan's has the most, a 180th.
_FEWEST_LATE, _MAX_LATE = 8, 1 / 100
_MAX_MERGES = 1 << 20  # of SentencePiece's: Gemma has half as many
# Of SentencePiece's, of which every cut is looked up; Gemma's quarter of a million have some two million characters.
_MAX_PIECE_CHARACTERS, _MAX_PIECES_CHARACTERS = 128, 1 << 22
# Phi-3's tokens that leave the white space behind them alone.
_NEVER_STRIPPED = ("<unk>", "<s>", "<|endoftext|>")


def build_tokenizer(vocabulary: GgufVocabulary) -> Tokenizer:
    """A fast tokenizer that gives the ids of the model's own. Raises TokenizerError for one that cannot be."""
    try:
        is_byte_level = vocabulary.kind.kind == BYTE_LEVEL
        merges = [parts_of(merge) for merge in vocabulary.kind.merges] or _merges(vocabulary)
        tokenizer = _byte_level(vocabulary, merges) if is_byte_level else _sentence_piece(vocabulary, merges)
        _add_tokens(tokenizer, vocabulary, _added_without_kind(vocabulary, merges))
    except TokenizerError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"The GGUF tokenizer cannot be built ({error!s:.200}): {OTHER}.") from error
    tokenizer.post_processor = _frame(vocabulary)
    return tokenizer


def _byte_level(vocabulary: GgufVocabulary, merges: list[tuple[str, str]]) -> Tokenizer:
    kind, ids = PRE_TOKENIZERS[vocabulary.kind.pre], _ids(vocabulary)
    if lost := sorted(_SYMBOLS - ids.keys()):
        raise TokenizerError(f"The GGUF file has no token of the byte {lost[0]!r}, whose text would vanish: {OTHER}.")
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=kind.keeps_words))
    if (normalizer := kind.normalizer()) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = kind.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(vocabulary: GgufVocabulary, merges: list[tuple[str, str]]) -> Tokenizer:
    """Pieces joined by merges, or by their scores as merges; bytes as a fallback."""
    unknown, ids = None if vocabulary.unknown_id is None else vocabulary.tokens[vocabulary.unknown_id], _ids(vocabulary)
    if unknown is None and _BYTE_TOKENS - ids.keys():
        raise TokenizerError(
            f"The GGUF file has neither tokens for all bytes nor one for unknown text, which would vanish: {OTHER}."
        )
    model = models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    marks: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    unmarks = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.kind.adds_space:
        marks.insert(0, normalizers.Prepend(_SPACE))
        unmarks.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(marks)
    tokenizer.decoder = decoders.Sequence(unmarks)
    return tokenizer


def _added_without_kind(vocabulary: GgufVocabulary, merges: list[tuple[str, str]]) -> set[str]:
    """Tokens that no merge makes, so that they can only have been added, though the file calls them normal.

    Ollama's converter does so with what a tokenizer.model has as user defined, such as Gemma's HTML. Of tokens that
    merges of the file make, those that look like words are left alone: a vocabulary may have more than it uses. Where
    the file says of no token what kind it is, some of these may be control tokens.
    """
    kind, has_kinds = vocabulary.kind, any(kind not in TEXT_KINDS for kind in vocabulary.token_kinds)
    made = {left + right for left, right in merges}
    framing = {vocabulary.bos_id, vocabulary.unknown_id, *vocabulary.end_ids}
    tokens = [vocabulary.tokens[i] for i in _normal_ids(vocabulary) if i not in framing]
    unmade = [token for token in tokens if len(token) > 1 and token not in made and not BYTE_TOKEN.fullmatch(token)]
    if has_kinds and kind.kind != SENTENCE_PIECE:
        unmade = [token for token in unmade if MARK.fullmatch(token)]
    if kind.kind == BYTE_LEVEL and PRE_TOKENIZERS[kind.pre].keeps_words:
        cutter, decoder = PRE_TOKENIZERS[kind.pre].pre_tokenizer(), decoders.ByteLevel()
        unmade = [token for token in unmade if len(cutter.pre_tokenize_str(decoder.decode([token]))) > 1]
    if unmade and not has_kinds:
        raise TokenizerError(
            f"The GGUF file calls all its tokens normal (tokenizer.ggml.token_type), also {unmade[0]!r:.80}, which no "
            f"text makes: {OTHER}."
        )
    return set(unmade)


def _merges(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, by its score, best first; equal ones as transformers orders them.

    SentencePiece joins the two neighbours whose piece has the best score, the leftmost first, which is the same.
    """
    pieces = {vocabulary.tokens[token_id]: token_id for token_id in _normal_ids(vocabulary)}
    if (num_characters := sum(map(len, pieces))) > _MAX_PIECES_CHARACTERS:
        raise TokenizerError(
            f"The GGUF file has pieces of {num_characters} characters together, more than are read: {OTHER}."
        )
    scores, ranked, num_late = vocabulary.kind.scores, [], 0
    for piece, token_id in pieces.items():
        if len(piece) > _MAX_PIECE_CHARACTERS:
            raise TokenizerError(f"The GGUF file has a piece of {len(piece)} characters, more than are read: {OTHER}.")
        score, is_late = scores[token_id], len(piece) > 1
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                ranked.append((-score, -len(left), -len(right), token_id, left, right))
                is_late &= any(len(part) > 1 and scores[pieces[part]] <= score for part in (left, right))
        num_late += is_late
        if len(ranked) > _MAX_MERGES:
            raise TokenizerError(f"The GGUF file's pieces join in more than {_MAX_MERGES} ways: {OTHER}.")
    if num_late > max(_FEWEST_LATE, _MAX_LATE * len(pieces)):
        raise TokenizerError(
            f"The GGUF file gives {num_late} of its {len(pieces)} pieces better scores than what they join: {OTHER}."
        )
    return [(left, right) for *_, left, right in sorted(ranked)]


def _normal_ids(vocabulary: GgufVocabulary) -> Iterator[int]:
    """Ids of the tokens that text is made of."""
    ids = _ids(vocabulary).values()
    return (i for i in ids if vocabulary.token_kinds[i] in TEXT_KINDS and not vocabulary.is_filler(i))


def _ids(vocabulary: GgufVocabulary) -> dict[str, int]:
    """Token -> id, without what fills the end."""
    num_tokens = len(vocabulary.tokens)
    while num_tokens and vocabulary.is_filler(num_tokens - 1):
        num_tokens -= 1
    return {token: token_id for token_id, token in enumerate(vocabulary.tokens[:num_tokens])}


def _add_tokens(tokenizer: Tokenizer, vocabulary: GgufVocabulary, plain: set[str]) -> None:
    """Tokens that are found in a text before all else; special ones are left out of answers, `plain` ones are not."""
    framing = {vocabulary.bos_id, vocabulary.eos_id, *vocabulary.end_ids}
    added = []
    for token_id, token in enumerate(vocabulary.tokens):
        kind = vocabulary.token_kinds[token_id]
        is_special = kind in _SPECIAL or token_id in framing
        if (is_special or kind == TokenKind.USER_DEFINED or token in plain) and not vocabulary.is_filler(token_id):
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

"""Prompts of models that fill in what stands between two texts, in each model's own form."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer as FastTokenizer

# Tokens before the prefix, before the suffix and before what is filled in ("": none), in the order of llama.cpp.
_PREFIX_FIRST = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma, Granite 4
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, StableCode, Granite Code
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # CodeLlama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
)
_SUFFIX_FIRST = (
    ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),  # Seed-Coder
    ("[PREFIX]", "[SUFFIX]", ""),  # Codestral
)
_REPOSITORIES = ("<|repo_name|>", "<repo_name>", "<reponame>")
_FILES = ("<|file_sep|>", "<file_sep>", "<|file_separator|>")
_ENDS = ("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "\u2581<EOT>", "<EOT>", "<|endoftext|>", "<|cursor|>")
_SNIPPET = "\n\n--- snippet ---\n\n"  # llama.cpp's, before a file where the model has no token for one
FIM_TOKENS = tuple(token for form in (*_PREFIX_FIRST, *_SUFFIX_FIRST) for token in form if token)

File = tuple[str, str]  # name, text


@dataclass(frozen=True, slots=True)
class FillInMiddle:
    """A model's form: ids of its tokens; None where it has none. start: of those before any prompt.

    end_ids: of tokens that end what is filled in, besides the model's own end tokens.
    """

    prefix: int
    suffix: int
    middle: int | None
    is_suffix_first: bool
    repository: int | None
    file: int | None
    start: tuple[int, ...]
    end_ids: tuple[int, ...]

    @classmethod
    def of(cls, fast: FastTokenizer) -> "FillInMiddle | None":
        """The form whose tokens a tokenizer has; None where it has none."""
        ids = {token.content: token_id for token_id, token in fast.get_added_tokens_decoder().items()}
        for form in (*_PREFIX_FIRST, *_SUFFIX_FIRST):
            if all(token in ids for token in form if token):
                ends = [token for token in (*form, *_REPOSITORIES, *_FILES, *_ENDS) if token in ids]
                return cls(
                    *(ids[form[0]], ids[form[1]], ids.get(form[2]), form in _SUFFIX_FIRST),
                    repository=next((ids[token] for token in _REPOSITORIES if token in ids), None),
                    file=next((ids[token] for token in _FILES if token in ids), None),
                    start=tuple(fast.encode("").ids),
                    end_ids=tuple(ids[token] for token in ends),
                )
        return None

    def prompt(
        self,
        encode: Callable[[str], list[int]],
        prefix: str,
        suffix: str,
        files: Sequence[File],
        max_tokens: int | None,
    ) -> list[int]:
        """Token ids of a prompt. encode: of texts, which hold no control tokens. files: that come first, as context.

        max_tokens: of the prompt, which is cut to that: the first files first, then the ends of prefix and suffix that
        are farthest from the gap, a quarter of the room for the suffix; None cuts nothing.
        """
        before, behind, context = encode(prefix), encode(suffix), self._context(encode, files, max_tokens)
        if max_tokens is not None:
            room = max(max_tokens - len(self.start) - 3, 0)
            num_behind = min(len(behind), max(room // 4, room - len(before)))
            behind = behind[:num_behind]
            before = _last(before, room - num_behind)
            context = _last(context, room - num_behind - len(before))
        parts = [self.prefix, *before], [self.suffix, *behind]
        first, second = reversed(parts) if self.is_suffix_first else parts
        return [*self.start, *context, *first, *second, *([] if self.middle is None else [self.middle])]

    def _context(self, encode: Callable[[str], list[int]], files: Sequence[File], max_tokens: int | None) -> list[int]:
        """Files before the prompt; the file that is completed has no name of its own, as with llama.cpp.

        max_tokens: that are needed of their end, so that files before it are not even encoded.
        """
        ids = [self.file, *encode("filename\n")] if files and self.file is not None else []
        for name, text in reversed(files):
            if max_tokens is not None and len(ids) >= max_tokens:
                return ids
            head = encode(_SNIPPET) if self.file is None else [self.file, *encode(f"{name}\n")]
            ids = [*head, *encode(text), *ids]
        return [self.repository, *encode("myproject\n"), *ids] if files and self.repository is not None else ids


def _last(ids: list[int], number: int) -> list[int]:
    return ids[max(len(ids) - number, 0) :]

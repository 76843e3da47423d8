"""Log-probabilities as completions tell them: lists of tokens, of their values, and of where they stand in the text."""

from collections.abc import Iterable, Sequence

from reader_edge.server.completion_request import Json
from reader_edge.server.openai.text_offsets import TextOffsets, prompt_offsets
from reader_edge_runtime import GenerationChunk, GenerationResult
from reader_edge_runtime.decoding.choosing.logprobs import TokenLogprob
from reader_edge_runtime.text.tokenizer import Tokenizer


class CompletionLogprobs:
    """Of one completion, whole or piece by piece. Offsets count characters from the beginning of what is returned."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], echoed: str = "") -> None:
        """echoed: the prompt's text where it is returned before the completion."""
        self._tokenizer = tokenizer
        self._prompt_token_ids = prompt_token_ids
        self._offsets = TextOffsets.behind(prompt_token_ids, len(echoed), tokenizer)

    def of_prompt(self, prompt: str | None, logprobs: Sequence[TokenLogprob | None]) -> Json:
        """Those of a prompt that is returned with its completion: one for each token, null for the first.

        prompt: as it was given; None where it was token ids.
        """
        token_ids = self._prompt_token_ids
        offsets = prompt_offsets(prompt, token_ids, self._tokenizer)
        num_before = next((i for i, each in enumerate(token_ids) if self._has_text(each)), len(token_ids))
        spelled = (self._spelled(each, is_first=number == num_before) for number, each in enumerate(token_ids))
        return self._fields_of(zip(spelled, logprobs, offsets, strict=True))

    def of_answer(self, answered: GenerationChunk | GenerationResult) -> Json | None:
        """Those of the tokens that have a text; None where they were not asked for.

        Those that end the answer with a stop text are among them, at offsets from the end of the text on.
        """
        if not answered.logprobs:
            return None
        placed = []
        for token_id, each in zip(answered.token_ids, answered.logprobs, strict=True):
            if self._has_text(token_id):
                name = self._spelled(token_id, self._offsets.is_first)
                placed.append((name, each, self._offsets.push(token_id)))
        return self._fields_of(placed)

    def _fields_of(self, entries: Iterable[tuple[str, TokenLogprob | None, int]]) -> Json:
        """Names, values and offsets of tokens as lists."""
        tokens, logprobs, offsets = [], [], []
        for name, each, offset in entries:
            tokens.append(name)
            logprobs.append(each)
            offsets.append(offset)
        tops = [None if each is None else {self._spelled(i): value for i, value in each.top} for each in logprobs]
        return {
            "tokens": tokens,
            "token_logprobs": [None if each is None else each.logprob for each in logprobs],
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _has_text(self, token_id: int) -> bool:
        return self._tokenizer.token(token_id) is not None

    def _spelled(self, token_id: int, is_first: bool = False) -> str:
        """A token's text; of a part of a character the bytes, as OpenAI writes them: no two are called alike."""
        spelled = self._tokenizer.token_bytes(token_id, is_first)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def joined(first: Json | None, second: Json | None) -> Json | None:
    """Those of a prompt and of its completion in one."""
    if first is None or second is None:
        return first or second
    return {name: [*first[name], *second[name]] for name in first}  # type: ignore[misc]

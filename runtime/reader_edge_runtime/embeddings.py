"""Embeddings of texts, and scores of relevance: read of a prompt's last token, of models that are made for it."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from reader_edge_runtime.acceptance import ExactRule
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.call_options import is_iterable
from reader_edge_runtime.config import GenerationConfig, SamplingConfig
from reader_edge_runtime.errors import ConfigError, PromptError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.untrusted.user_input import short_repr

if TYPE_CHECKING:
    from reader_edge_runtime.forward_result import ForwardResult

Given = TypeVar("Given")

NO_EMBEDDINGS = "The model here answers in text and makes no embeddings: ask one made for them, as Qwen3-Embedding."
NO_SCORES = "The model here is no reranker, so that it scores no documents: ask one made for it, as Qwen3-Reranker."
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"

# The prompt that Qwen3-Reranker was trained with (its model card), whose parts are encoded one by one.
_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def given_list(values: Iterable[Given], name: str) -> list[Given]:
    """Several texts, of which one alone is none. Raises PromptError."""
    if isinstance(values, str) or not is_iterable(values):
        raise PromptError(f"{name} is {short_repr(values)}, but must be a list of texts.")
    return list(values)


class LastToken(ExactRule):
    """Chooses as the model does, and keeps what a pass says of the prompt's last token; one a request.

    values: float32, the hidden state (E,) that the logit head reads, or the logits of `token_ids` where there are any.
    """

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        self.values: Float32Array = np.zeros(0, np.float32)
        self._token_ids = list(token_ids)
        self.wants_logits, self.wants_hidden_states = bool(token_ids), not token_ids

    def read_prompt(self, result: "ForwardResult", row: int) -> None:
        if self._token_ids:
            self.values = result.wanted_logits[0, row, self._token_ids]
        elif result.hidden_states is not None:
            self.values = result.hidden_states[0, row].copy()

    @property
    def config(self) -> GenerationConfig:
        """Of a request that ends when its prompt was read, and of which no drafter learns."""
        return GenerationConfig(max_tokens=1, sampling=SamplingConfig(), acceptance=self, is_drafted=False)


class Embedder:
    """Makes vectors of what `reader` keeps. Raises ConfigError for a package that is not made for embeddings."""

    def __init__(self, manifest: Manifest, dimensions: int | None = None) -> None:
        """dimensions: how many numbers of each vector stay, the first ones (Matryoshka embeddings); None for all."""
        if manifest.pooling != "last":
            raise ConfigError(NO_EMBEDDINGS)
        if manifest.hidden_size is None:
            raise ConfigError("This package, made for a device, reports no hidden states: export it for CPUs.")
        if dimensions is not None and not (type(dimensions) is int and 1 <= dimensions <= manifest.hidden_size):
            given, most = short_repr(dimensions), manifest.hidden_size
            raise ConfigError(f"dimensions is {given}, but must be a whole number from 1 to {most}.")
        self._dimensions, self._size = dimensions, manifest.hidden_size

    def reader(self) -> LastToken:
        return LastToken()

    def vector(self, reader: LastToken) -> Float32Array:
        """float32 (E,), or as many as there are dimensions, of length 1."""
        values = reader.values[: self._dimensions].astype(np.float64)
        vector: Float32Array = (values / max(float(np.sqrt((values * values).sum())), 1e-12)).astype(np.float32)
        return vector

    def vectors(self, readers: Sequence[LastToken]) -> Float32Array:
        """float32 (B, E)."""
        size = self._dimensions or self._size
        return np.array([self.vector(each) for each in readers], np.float32).reshape(len(readers), size)


class Reranker:
    """Scores documents by the model's own "yes" or "no". Raises ConfigError for a package that is no reranker."""

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer) -> None:
        if manifest.pooling != "rank":
            raise ConfigError(NO_SCORES)
        self._tokenizer = tokenizer
        answers = [tokenizer.encode(text, adds_special_tokens=False) for text in ("no", "yes")]
        if any(len(token_ids) != 1 for token_ids in answers):
            raise ConfigError("The reranker's tokenizer has no tokens 'yes' and 'no': export the model again.")
        self._answer_ids = [token_ids[0] for token_ids in answers]

    def reader(self) -> LastToken:
        return LastToken(self._answer_ids)

    def prompt(self, query: str, document: str, instruction: str | None = None) -> list[int]:
        """instruction: what makes a document relevant; None for a web search. Raises PromptError."""
        instruction = INSTRUCTION if instruction is None else instruction
        for name, text in (("query", query), ("document", document), ("instruction", instruction)):
            if not isinstance(text, str):
                raise PromptError(f"The {name} is {short_repr(text)}, but must be a text.")
        question = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        self._tokenizer.check_length(question)
        parts = (self._tokenizer.encode(part, adds_special_tokens=False) for part in (_PREFIX, question, _SUFFIX))
        return [token_id for part in parts for token_id in part]

    def score(self, reader: LastToken) -> float:
        """From 0 to 1: the probability of "yes", where "no" is all else that can be."""
        no, yes = map(float, reader.values)
        return float(1 / (1 + np.exp(np.clip(no - yes, -700, 700))))

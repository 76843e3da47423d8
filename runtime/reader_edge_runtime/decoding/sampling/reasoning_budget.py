"""A limit of what an answer thinks: after so many tokens of thought, the template's own end of thinking must come.

As in llama.cpp's server (pull request 20297), without its message before the end, which is empty there by default.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.decoding.sampling.constraint import Constraint
from reader_edge_runtime.draft_tree import FORCED_SOURCE, DraftTree
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.output_format import OutputFormat
from reader_edge_runtime.text.text_stream import StreamDecoder
from reader_edge_runtime.text.tokenizer import Tokenizer

_MAX_LATE = 3  # tokens that a character which the limit would cut may still take


class ReasoningBudget:
    """A `Constraint`: while the thoughts of an answer are within their budget as another one has it, or any token."""

    def __init__(
        self,
        max_tokens: int,
        end_ids: Sequence[int],
        reading: OutputFormat,
        decoder: StreamDecoder,
        vocab_size: int,
        within: Constraint | None = None,
    ) -> None:
        """end_ids: what ends a thought. decoder: of the answer. within: a grammar that begins behind a thought."""
        reader = reading.reader()
        assert reader is not None
        self._num_left = max_tokens  # below 0 behind a character that was cut
        self._end_ids = list(end_ids)
        self._reader, self._decoder = reader, decoder
        self._within = within
        self._any = np.ones(vocab_size, np.bool_)
        self._rest: list[int] = []  # of the end that must come
        self._recent: list[int] = []  # tokens, which may have begun it
        self._force()

    @property
    def is_over(self) -> bool:
        return self._within is not None and self._within.is_over

    @property
    def forced(self) -> Sequence[int]:
        return self._rest or (self._within.forced if self._within is not None else ())

    def prepare(self) -> None:
        if self._within is not None:
            self._within.prepare()

    def mask(self) -> npt.NDArray[np.bool_]:
        if self._rest:
            mask = np.zeros_like(self._any)
            mask[self._rest[0]] = True
            return mask
        return self._any if self._within is None else self._within.mask()

    def advance(self, token_id: int) -> None:
        if self._within is not None:
            self._within.advance(token_id)
        is_forced = bool(self._rest)
        self._rest = self._rest[1:]
        if not self._may_think:
            return
        self._recent = [*self._recent, token_id][-len(self._end_ids) :]
        was_inside = self._reader.is_inside
        self._reader.push(self._decoder.push(token_id), is_last=False)
        self._num_left -= was_inside and self._reader.is_inside and not is_forced
        self._force()

    def cut(self, tree: DraftTree, max_nodes: int) -> DraftTree:
        if self._reader.is_inside:
            tree = self._ended(tree)
        return tree.pruned(max_nodes) if self._within is None else self._within.cut(tree, max_nodes)

    def close(self) -> None:
        if self._within is not None:
            self._within.close()

    @property
    def _may_think(self) -> bool:
        """Whether a thought goes on or may begin; before a grammar there is one alone."""
        return self._reader.is_inside or (self._within is None and self._reader.may_begin)

    def _force(self) -> None:
        is_spent = self._reader.is_inside and self._num_left <= 0
        if is_spent and not self._rest and (not self._decoder.is_holding or self._num_left <= -_MAX_LATE):
            sizes = range(len(self._end_ids) - 1, 0, -1)
            begun = next((size for size in sizes if self._recent[-size:] == self._end_ids[:size]), 0)
            self._rest = self._end_ids[begun:]

    def _ended(self, tree: DraftTree) -> DraftTree:
        """A draft without thoughts beyond the budget, and with the end in their place on its likeliest path."""
        end = self._rest or self._end_ids
        left: dict[int, float] = {0: max(self._num_left, 0)}  # tokens to think behind a node; infinite behind the end
        for node in range(1, len(tree)):
            num_left = left.get(tree.parents[node], -1)
            if tree.token_ids[node] == end[-1] and num_left >= 0:
                left[node] = math.inf
            elif num_left > 0:
                left[node] = num_left - 1
        kept = tree.of_nodes(list(left))
        spent = [number for number, num_left in enumerate(left.values()) if num_left == 0]
        if spent:
            node = max(spent, key=kept.values.__getitem__)
            value = kept.values[node]
            for token_id in end:
                child = kept.child(node, token_id)
                node = child if child >= 0 else kept.add(token_id, node, FORCED_SOURCE, value)
        return kept


def within_budget(
    constraint: Constraint | None,
    prompt: Encodable,
    token_ids: Sequence[int],
    config: GenerationConfig,
    tokenizer: Tokenizer,
    vocab_size: int,
) -> Constraint | None:
    """The constraint of an answer whose thoughts have a budget, over that of its grammar.

    token_ids: the prompt's. Raises ConfigError for a model whose end of thinking is no text that can be encoded.
    """
    if config.max_reasoning_tokens is None or tokenizer.thinking_tags is None:
        return constraint
    reading = OutputFormat.of(prompt, token_ids, replace(config, splits_thinking=True), tokenizer)
    if constraint is not None and not (config.splits_thinking and reading.is_thinking):
        return constraint  # a grammar that holds from the first token on lets no thought begin
    end = tokenizer.thinking_tags.end
    end_ids = tokenizer.encode(end, adds_special_tokens=False)
    decoder = StreamDecoder(tokenizer, token_ids, reading.kept)
    written = "".join([*map(decoder.push, end_ids), decoder.finish()])
    if end not in written:
        reason = f"the tokenizer cannot write {end!r}, which ends this model's thoughts"
        raise ConfigError(f"max_reasoning_tokens is {config.max_reasoning_tokens}, but {reason}: leave it out.")
    decoder = StreamDecoder(tokenizer, token_ids, reading.kept)
    return ReasoningBudget(config.max_reasoning_tokens, end_ids, reading, decoder, vocab_size, constraint)

"""One request on its way: its tokens, its choices and when it ends."""

from collections.abc import Callable
from collections.abc import Sequence as TokenIds
from typing import Literal

import numpy as np

from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.decoding.choosing.sampler import Sampler
from reader_edge_runtime.decoding.planning.draft_guard import DraftGuard
from reader_edge_runtime.drafting.drafter import RequestDrafter
from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.stats import GenerationStats

FinishReason = Literal["stop", "length", "context", "cancelled"]


class Sequence:
    """Prompt and answer of one request.

    token_ids: prompt, then answer; all but the last (the pending token) have KV rows once decoding runs.
    finish_reason: None while it runs; "stop" after an end token or stop string, "length" at max_tokens, "context" at
        the model's limit, "cancelled" when the caller gave up.
    """

    def __init__(
        self,
        prompt_token_ids: TokenIds[int],
        config: GenerationConfig,
        manifest: Manifest,
        guard: DraftGuard,
        is_stop: Callable[[int], bool] | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        _check_prompt(prompt_token_ids, manifest)
        self.token_ids = list(map(int, prompt_token_ids))
        self.num_prompt_tokens = len(self.token_ids)
        self.config = config
        self.drafter: RequestDrafter | None = None
        self.has_drafted = False
        self.guard = guard
        self.sampler = sampler or Sampler(config.sampling, manifest.vocab_size, self.token_ids)
        self.stats = GenerationStats(num_prompt_tokens=self.num_prompt_tokens)
        self.finish_reason: FinishReason | None = None
        self._is_stop = is_stop
        self._max_context = manifest.max_context
        self._stop_token_ids = set(config.stop_token_ids)
        if not config.ignores_eos:
            self._stop_token_ids.update(manifest.eos_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens this sequence may still emit."""
        by_length = self.config.max_tokens - self.num_output_tokens
        return min(by_length, self._max_context - len(self.token_ids))

    def takes_rest(self) -> bool:
        """Whether drafting pauses in this step; called once in each that could draft."""
        is_resting = self.guard.takes_rest()
        self.stats.num_rested_steps += is_resting
        return is_resting

    def append(self, token_id: int) -> bool:
        """Emit one token; True when it is the last."""
        self.token_ids.append(token_id)
        self.stats.num_tokens += 1
        if token_id in self._stop_token_ids or (self._is_stop is not None and self._is_stop(token_id)):
            self.finish_reason = "stop"
        elif self.num_output_tokens >= self.config.max_tokens:
            self.finish_reason = "length"
        elif len(self.token_ids) >= self._max_context:
            self.finish_reason = "context"
        return self.finish_reason is not None


def _check_prompt(token_ids: TokenIds[int], manifest: Manifest) -> None:
    if not len(token_ids):
        raise PromptError("The prompt is empty: give at least one token of text.")
    if len(token_ids) >= manifest.max_context:
        raise PromptError(
            f"The prompt has {len(token_ids)} tokens, but the model's context of {manifest.max_context} must also hold "
            "the answer: shorten the prompt."
        )
    for token_id in token_ids:
        if not isinstance(token_id, (int, np.integer)) or not 0 <= token_id < manifest.vocab_size:
            raise PromptError(
                f"The prompt holds token id {token_id!r:.80}, but the vocabulary has {manifest.vocab_size} tokens."
            )

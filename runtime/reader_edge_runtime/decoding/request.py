"""A running request: its tokens, its sampler and constraint, and when it ends."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np

from reader_edge_runtime.adapters.adapter_set import LoadedAdapter
from reader_edge_runtime.config import GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.prompt_images import FIRST_IMAGE_ID, EncodedImage, PromptImages
from reader_edge_runtime.decoding.sampling.constraint import Constraint
from reader_edge_runtime.decoding.sampling.sampler import Sampler, TokenLogprob, token_logprob
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.draft_hints import NO_HINTS, DraftHints
from reader_edge_runtime.drafting.drafter import Drafter, RequestContext, RequestDrafter, salt_of
from reader_edge_runtime.drafting.payoff import AcceptanceEstimate, Repetition
from reader_edge_runtime.errors import ConfigError, DraftError, PromptError, PromptTooLongError, ProviderError
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.untrusted.user_input import short_repr

FinishReason = Literal["stop", "length", "context", "cancelled", "error"]


class Request:
    """Prompt and answer of one request.

    token_ids: prompt, then answer; all but the last (the pending token) have KV rows once decoding runs. This list is
    the request's one text: drafters and tools hold it, and positions in it; those of images have ids of their own.
    drafted_ids: what drafters and penalties get of it, which is the same list where it has no images. images: those of
        the prompt; None where it has none.
    max_length: tokens that prompt and answer have at most. stop_token_ids: those that end the answer.
    takes_best: whether the best token is the choice. needs_logits: whether choosing takes whole rows of logits.
    acceptance: which token is emitted behind a node of a draft. sampling: of the config; greedy where it has none.
    logprobs: of each token of the answer, where the config wants them. prompt_logprobs: of each prompt
        token that was scored, where the config wants them; None for the first, which follows nothing, and of images.
    sources: what drafted each token of the answer, "" where nothing did; it may end before the answer does.
    finish_reason: None while it runs; "stop" after an end token, a stop string or a constraint's end, "length" at
        max_tokens, "context" at the model's limit, "cancelled" when the caller gave up, "error" when something of this
        request failed.
    remote: drafts of a remote client; None where there is none.
    adapter_id: as of a `Pass`. salt: what keeps its texts, and what they teach, apart from those of others: its
        adapter's fingerprint and its caller's own.
    error: what failed. priority: of waiting requests the lowest is next. num_read_tokens: of the prompt, by the target.
    on_progress: called with these and the prompt's tokens after each pass over it, and while its images are seen; what
        it raises ends the request.
    is_closed: whether its constraint is needed no more.
    """

    def __init__(
        self,
        prompt_token_ids: Sequence[int],
        config: GenerationConfig,
        manifest: Manifest,
        is_stop: Callable[[int], bool] | None = None,
        sampler: Sampler | None = None,
        constraint: Constraint | None = None,
        hints: DraftHints = NO_HINTS,
        images: Sequence[EncodedImage] = (),
        adapter: LoadedAdapter | None = None,
    ) -> None:
        """is_stop: gets each emitted token, True ends the answer. sampler: in place of what config.sampling describes.
        hints: what is known of the answer, to draft from. images: of the prompt, in its order. adapter: what the
        config's name means.

        Raises PromptError or ConfigError.
        """
        self.token_ids = self.drafted_ids = _checked(prompt_token_ids, manifest, images)
        self.images: PromptImages | None = None
        if images and manifest.images is not None:  # a server's welcome says nothing of images
            self.images = PromptImages(self.token_ids, images, manifest.images)
            self.token_ids, self.drafted_ids = self.images.token_ids, self.images.token_ids.texts
        self.num_prompt_tokens = len(self.token_ids)
        self.config = config
        self.adapter_id = -1 if adapter is None else adapter.adapter_id
        self._adapter = adapter  # held, so that its place stays its own
        self.salt = salt_of("" if adapter is None else adapter.fingerprint, config.cache_salt)
        self.sampling = config.sampling or SamplingConfig()
        self.sampler = sampler or Sampler(self.sampling, manifest.vocab_size, self.drafted_ids)
        self.constraint = constraint
        self.takes_best = self.sampler.takes_best
        self.acceptance = rule = config.acceptance
        self.needs_logits = constraint is not None or not self.takes_best or config.wants_logprobs
        # What another rule takes may be none of the best, whose log-probabilities alone are known without logits.
        self.needs_logits |= rule.wants_logits or (config.is_scored and not rule.is_exact)
        if rule.wants_hidden_states and manifest.hidden_size is None:
            raise ConfigError(
                f"The acceptance rule {rule.name!r} reads hidden states, which this package does not report: export it "
                "again."
            )
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob | None] = [None] if config.wants_prompt_logprobs else []
        self.sources: list[str] = []
        self.stats = GenerationStats(num_prompt_tokens=self.num_prompt_tokens)
        self.estimate, self.forced_estimate = AcceptanceEstimate(), AcceptanceEstimate()
        self.repetition = Repetition()
        self.priority = self.num_read_tokens = 0
        self.on_progress: Callable[[int, int], None] | None = None
        self.drafter: RequestDrafter | None = None
        self._hints = hints
        self.remote = hints.remote
        self.has_drafted = self.is_closed = False
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self._is_stop = is_stop
        self.max_length = min(self.num_prompt_tokens + config.max_tokens, manifest.max_context)
        self._vocab_size = manifest.vocab_size
        self.stop_token_ids = _checked_stops(config.stop_token_ids, manifest.vocab_size)
        if not config.ignores_eos:
            self.stop_token_ids.update(manifest.eos_token_ids)

    @property
    def is_running(self) -> bool:
        return self.finish_reason is None

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt, with the vocabulary's id for an image at each of its tokens."""
        token_ids = self.token_ids[: self.num_prompt_tokens]
        return token_ids if self.images is None else self.images.graph_ids(token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens this request may still emit."""
        return self.max_length - len(self.token_ids)

    def peek(self, result: ForwardResult, b: int, row: int, reads_logits: bool) -> int:
        """The token that the target would choose after row (b, row) of a pass; nothing is changed.

        reads_logits: even where the best token is all it takes.
        """
        position = len(self.token_ids)
        if not math.isfinite(result.top_logits[b, row, 0]):
            raise ProviderError("The model's logits are not numbers: export it again, in fp32 if it was in fp16.")
        if reads_logits or self.needs_logits:
            logits = result.wanted_logits[b, row]
            if self.constraint is not None:
                logits = np.where(self.constraint.mask(), logits, np.float32(-np.inf))
            return self.sampler.peek(logits, position)
        token_id = self.sampler.peek_best(int(result.top_ids[b, row, 0]), position)
        if not 0 <= token_id < self._vocab_size:
            raise ProviderError(
                f"The model's graph names token id {token_id} as the best, but the vocabulary has "
                f"{self._vocab_size} tokens: export it again."
            )
        return token_id

    def allows(self, token_id: int) -> bool:
        """Whether a token may come next: whether there is one, and the constraint lets it."""
        return 0 <= token_id < self._vocab_size and (self.constraint is None or bool(self.constraint.mask()[token_id]))

    def take(self, result: ForwardResult, b: int, row: int, token_id: int) -> bool:
        """Emit a token after row (b, row) of a pass; True when it is the last.

        Grammar, penalties and log-probabilities go on from it. Raises DraftError for a token of an acceptance rule
        that may not come.
        """
        if not self.acceptance.is_exact and not self.allows(token_id):
            raise DraftError(
                f"The acceptance rule {self.acceptance.name!r} took token id {token_id}, which cannot come."
            )
        if self.constraint is not None:
            self.constraint.advance(token_id)
        if not self.takes_best:
            self.sampler.take(token_id)
        if self.config.is_scored:
            self.stats.count_score(result.log_probability(b, row, token_id))
        if self.config.wants_logprobs:
            self.logprobs.append(token_logprob(result.wanted_logits[b, row], token_id, self.config.num_top_logprobs))
        return self.emit(token_id)

    @property
    def is_lockstep(self) -> bool:
        """Whether it steps with trees of its remote client alone."""
        return self.remote is not None and self.remote.is_lockstep

    @property
    def is_held(self) -> bool:
        """Whether it waits, without a KV slot, for its remote client to come back."""
        if self.remote is None or not self.is_running:
            return False
        return self.remote.is_away(self.token_ids) if self.num_output_tokens else self.remote.is_held

    @property
    def can_go_on(self) -> bool:
        """Whether it waits for nothing of its remote client."""
        if self.remote is None or not self.is_running:
            return True
        return not self.remote.is_held and (not self.num_output_tokens or self.remote.is_ready(self.token_ids))

    @property
    def prefill_end(self) -> int:
        """Tokens that have KV rows when decoding begins, or goes on after a while without a slot."""
        return len(self.token_ids) - 1 if self.num_output_tokens else self.num_prompt_tokens

    @property
    def reusable_token_ids(self) -> list[int]:
        """The text, as far as it may be found in the cache: logits come only of what is scored."""
        return self.token_ids[:1] if self.config.wants_prompt_logprobs else self.token_ids

    @property
    def is_reading_prompt(self) -> bool:
        """Whether the logits of all prompt tokens are needed, which then are not all scored."""
        return self.config.wants_prompt_logprobs and not self.num_output_tokens

    def read_prompt(self, result: ForwardResult, first: int, num_rows: int) -> None:
        """Keep what a pass over prompt tokens, from position `first` on, says of the tokens after them."""
        followers = self.token_ids[first + 1 : first + 1 + num_rows]
        for row, token_id in enumerate(followers):
            logits, num_top = result.wanted_logits[0, row], self.config.num_top_logprobs
            is_text = token_id < FIRST_IMAGE_ID
            self.prompt_logprobs.append(token_logprob(logits, token_id, num_top) if is_text else None)

    def emit(self, token_id: int) -> bool:
        """Add one token to the answer; True when it is the last."""
        self.token_ids.append(token_id)
        self.stats.num_tokens += 1
        is_stopped = self._is_stop is not None and self._is_stop(token_id)  # called for every token
        is_over = self.constraint is not None and self.constraint.is_over
        if is_stopped or is_over or token_id in self.stop_token_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.max_length:
            is_full = self.num_output_tokens < self.config.max_tokens
            self.finish_reason = "context" if is_full else "length"
        return self.finish_reason is not None

    def count_tree(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Count a step's tree, and the walked nodes of it, whose tokens and one more were the last to be emitted."""
        self.stats.count_tree(tree, path)
        self.sources += [""] * (self.num_output_tokens - len(path) - len(self.sources))
        self.sources += [tree.sources[node] for node in path[1:]]

    def fail(self, error: BaseException) -> None:
        """End with an error; an interrupt is none, but cancels what has not ended."""
        if isinstance(error, Exception):
            self.finish_reason, self.error = "error", error
        else:
            self.finish_reason = self.finish_reason or "cancelled"

    @property
    def forced(self) -> Sequence[int]:
        """Tokens to draft because a constraint lets no others come next."""
        return self.constraint.forced if self.constraint is not None and self.drafter is not None else ()

    @property
    def has_hints(self) -> bool:
        """Whether more than texts can say what comes: a prediction, tools, a remote client or a constraint."""
        return bool(self._hints) or self.constraint is not None

    def begin_drafting(self, drafter: Drafter) -> None:
        """Have a drafter draft for this request, of whose hints other requests say nothing."""
        if self._hints:
            self.estimate = AcceptanceEstimate()
        temperature, has_images = self.sampling.temperature, self.images is not None
        context = RequestContext(self.drafted_ids, self._hints, temperature, self.salt, has_images)
        self.drafter = drafter.begin(context)

    def prepare(self) -> None:
        """Have made meanwhile what the choice after a pass takes."""
        if self.constraint is not None:
            self.constraint.prepare()

    def close(self) -> None:
        """Give back what only a running request needs."""
        self.is_closed, self._adapter = True, None
        if self.constraint is not None:
            self.constraint.close()

    @contextmanager
    def catching_errors(self) -> Iterator[None]:
        """A block of work for this request, whose error ends this request alone; an interrupt is raised again."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise


def _checked_stops(token_ids: Sequence[int], vocab_size: int) -> set[int]:
    for token_id in token_ids:
        if token_id >= vocab_size:
            problem = f"stop_token_ids names token {token_id}, but the vocabulary has {vocab_size}"
            raise ConfigError(f"{problem}: name ids from 0 to {vocab_size - 1}.")
    return set(token_ids)


def _checked(token_ids: Sequence[int], manifest: Manifest, images: Sequence[EncodedImage]) -> list[int]:
    if not len(token_ids):
        raise PromptError("The prompt is empty: give at least one token of text.")
    if len(token_ids) >= manifest.max_context:
        seen, remedy = "", "shorten the prompt"
        if images:
            seen = f", {sum(each.num_tokens for each in images)} of them of images"
            remedy = "give fewer or smaller images, or less text"
        sentence = (
            f"The prompt has {len(token_ids)} tokens{seen}, but the model's context of {manifest.max_context} must "
            f"also hold the answer: {remedy}."
        )
        raise PromptTooLongError(sentence, len(token_ids), manifest.max_context)
    for token_id in token_ids:
        is_id = isinstance(token_id, int | np.integer) and not isinstance(token_id, bool)
        if not is_id or not 0 <= token_id < manifest.vocab_size:
            size = manifest.vocab_size
            problem = f"The prompt holds token id {short_repr(token_id)}, but the vocabulary has {size} tokens"
            raise PromptError(f"{problem}: give ids from 0 to {size - 1}.")
    return list(map(int, token_ids))

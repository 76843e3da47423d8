"""The plain answers that drafted ones are compared with: one request alone, one token a pass, every logit row read."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, cycle

from reader_edge.verify.logit_comparer import PlainAnswer, digest
from reader_edge.verify.variants import WIDEST_BATCH, Variant
from reader_edge_runtime import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.acceptance import EXACT, AcceptanceRule
from reader_edge_runtime.adapters.adapter_set import LoadedAdapter
from reader_edge_runtime.assembly import make_decoder
from reader_edge_runtime.decoding.prefix_cache import PrefixCache
from reader_edge_runtime.decoding.prefix_files import PrefixFiles
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.generation_config import chosen_sampling
from reader_edge_runtime.images.prompt_reader import ReadPrompt
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Target

ARRIVING_CHUNK = 32  # tokens of a prompt that are scored between two steps
FEW_TOKENS = 8  # that an answer has at least, however little time there is
_LONG_EVERY = 2  # questions of which one stands behind so much text that its prompt takes several chunks
_LONG_PROMPT = 136  # tokens
_SAMPLED = SamplingConfig(temperature=0.8, top_p=0.95)  # of a model that recommends nothing
_FURTHER_SAMPLINGS = (
    SamplingConfig(temperature=1.2, top_k=40, repetition_penalty=1.1),
    SamplingConfig(temperature=0.5, min_p=0.05, frequency_penalty=0.3, presence_penalty=-0.2),
)


def usual_sampling(manifest: Manifest) -> SamplingConfig:
    """How sampled answers are drawn: as users get them, by what the package recommends, but for the seed."""
    return chosen_sampling(manifest.sampling, {"seed": 0}) if manifest.sampling.get("temperature") else _SAMPLED


def behind_long_texts(prompts: Sequence[ReadPrompt], past: int, max_context: int, max_tokens: int) -> list[ReadPrompt]:
    """Each prompt behind so much of others that about `past` tokens stand before its answer: a few more or fewer, so
    that batches are ragged. Where the context holds fewer, its end cuts each answer to about half."""
    most = min(past, max_context - max(1, max_tokens // 2))
    return [_behind_others(prompts, i, most - i % WIDEST_BATCH) for i in range(len(prompts))]


def _behind_others(prompts: Sequence[ReadPrompt], which: int, length: int) -> ReadPrompt:
    """A prompt behind others, of so many tokens in all; as it is where it is as long. One that is cut has no images."""
    before, others = list[ReadPrompt](), cycle((*prompts[which:], *prompts[:which]))
    missing = length - len(prompts[which].token_ids)
    while missing > 0:
        other = next(others)
        if len(other.token_ids) > missing:
            other = ReadPrompt("", other.text_ids[:missing], other.text_ids[:missing])
        before.append(other)
        missing -= len(other.token_ids)
    _, token_ids, text_ids, images = zip(*before, prompts[which], strict=True)
    return ReadPrompt("", [*chain(*token_ids)], [*chain(*text_ids)], (*chain(*images),))


class PlainAnswers:
    """Each answer is decoded when it is first requested, and kept.

    num_tokens: decoded so far, in all. prefixes: where rows of prompts are kept and found; None for nowhere.
    """

    def __init__(
        self,
        target: Target,
        config: EngineConfig,
        prompts: Sequence[ReadPrompt],
        max_tokens: int,
        acceptance: AcceptanceRule = EXACT,
        adapters: Sequence[LoadedAdapter] = (),
    ) -> None:
        """acceptance: what the answers that are compared with these are decoded by. adapters: that questions have in
        turn, every one more than those none."""
        self._adapters = None, *adapters
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self.prefixes: PrefixFiles | None = None
        self._target = target
        self._config = config
        self._prompts = prompts
        self._acceptance = acceptance
        self._sampled = usual_sampling(target.manifest)
        self._known: dict[tuple[int, bool, bool, bool], list[PlainAnswer]] = {}

    def of(self, question: int, variant: Variant, is_over: Callable[[], bool], min_tokens: int) -> list[PlainAnswer]:
        """The answers to a question that a variant compares: one, or for arrivals a greedy and a sampled one.

        Once is_over says so, answers end; not before they have min_tokens, though.
        """
        place = question, variant.is_sampled, variant.is_arriving, variant.is_restored
        if place not in self._known:
            if variant.is_restored:
                requested = [self._unanswered(question, self._long_prompt(question), SamplingConfig())]
            elif variant.is_arriving:
                requested = self._arriving(question)
            else:
                sampling = replace(self._sampled, seed=1 + question) if variant.is_sampled else SamplingConfig()
                requested = [self._unanswered(question, self._prompts[question], sampling)]
            self._known[place] = [self.decoded(each, is_over, min_tokens) for each in requested]
            self.num_tokens += sum(len(each.token_ids) for each in self._known[place])
        return self._known[place]

    def drop_short(self) -> None:
        """Forget those that the time cut, so that they are decoded again when they are requested."""
        self._known = {place: few for place, few in self._known.items() if all(each.is_whole for each in few)}

    def decoded(self, requested: PlainAnswer, is_over: Callable[[], bool], min_tokens: int) -> PlainAnswer:
        """An answer with its tokens. Raises what its request failed of."""
        config = replace(self._config, max_batch=1, prefill_chunk=requested.chunk or self._config.prefill_chunk)
        decoder = make_decoder(self._target, RetrievalDrafter(DraftConfig()).wait(), config)
        if self.prefixes is not None:
            decoder.slots.prefixes = PrefixCache(self.prefixes, b"", decoder.cache)
        digests: list[bytes] = []
        decoder.on_logits = lambda _, row: digests.append(digest(row))
        plain = replace(requested.config, is_drafted=False, acceptance=EXACT)
        request = decoder.submit(
            requested.prompt.token_ids, plain, images=requested.prompt.images, adapter=requested.adapter
        )
        while request.is_running and not (is_over() and request.num_output_tokens >= min_tokens):
            decoder.step()
        is_whole = not request.is_running
        if not is_whole:
            decoder.cancel(request)
        if request.error is not None:
            raise request.error
        decoder.flush_prefixes()
        token_ids = request.output_token_ids
        config_of_answer = requested.config if is_whole else replace(requested.config, max_tokens=len(token_ids))
        return replace(requested, config=config_of_answer, token_ids=token_ids, digests=digests, is_whole=is_whole)

    def _arriving(self, question: int) -> list[PlainAnswer]:
        """Greedy and sampled in several ways, some behind the texts of others."""
        prompt = self._prompts[question] if question % _LONG_EVERY else self._long_prompt(question)
        samplings = (self._sampled, *_FURTHER_SAMPLINGS)
        sampled = replace(samplings[question % len(samplings)], seed=1 + question)
        return [self._unanswered(question, prompt, each, ARRIVING_CHUNK) for each in (SamplingConfig(), sampled)]

    def _long_prompt(self, question: int) -> ReadPrompt:
        """A prompt behind so much of others that it takes several chunks; one with images behind itself, so that two
        differ in their images alone."""
        prompt, most = self._prompts[question], self._target.manifest.max_context - self.max_tokens
        if prompt.images:
            return _behind_others([prompt], 0, min(max(_LONG_PROMPT, 2 * len(prompt.token_ids)), most))
        return _behind_others(self._prompts, question, min(_LONG_PROMPT, most))

    def _unanswered(self, question: int, prompt: ReadPrompt, sampling: SamplingConfig, chunk: int = 0) -> PlainAnswer:
        rule = self._acceptance
        config = GenerationConfig(self.max_tokens, sampling, ignores_eos=True, acceptance=rule)
        adapter = self._adapters[question % len(self._adapters)]
        return PlainAnswer(question, prompt, config, [], [], chunk, adapter=adapter)

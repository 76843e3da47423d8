"""The proof that drafting changes nothing: every token, and the bits of every logit row a token was chosen from.

The reference decodes plainly, one request alone, one token per pass, and reads every logit row. Against it runs every
drafter in every variant, one request alone and several ragged ones together: no drafts, every combination of sources,
all of them beside a hostile one, and a drafter that knows the answers. Then requests come at random moments, greedy and
sampled ones, drafted and plain ones, prompts that take several steps; and some are given up. Trees are verified whether
they pay or not, in widths drawn at random, and over several boxes a lone request's in two passes. What users run comes
first, and each variant has its share of the time.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from reader_edge.prompts import EvalPrompt
from reader_edge.verify.arrivals import Arrival, StepDecoder, all_at_once, at_random, decode, num_at_random
from reader_edge.verify.drafters import DrafterMaker, HostileSource, RandomWidths, SharedDrafters
from reader_edge.verify.logit_comparer import LogitComparer, PlainAnswer, Tally, WatchedTarget
from reader_edge.verify.plain_answers import ARRIVING_CHUNK, FEW_TOKENS, PlainAnswers, behind_long_texts
from reader_edge.verify.result import ProofReport
from reader_edge.verify.variants import Job, TimeBudget, schedule, settings
from reader_edge_runtime import DraftConfig, Engine, GenerationConfig, SamplingConfig
from reader_edge_runtime.acceptance import EXACT, AcceptanceRule
from reader_edge_runtime.assembly import make_trial_decoder, prompt_reader
from reader_edge_runtime.decoding.prefix_cache import CHUNK, PrefixCache
from reader_edge_runtime.decoding.prefix_files import PrefixFiles
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.errors import DraftError, ProofError
from reader_edge_runtime.images.prompt_reader import ReadPrompt
from reader_edge_runtime.target import PipelinedTarget

_REFUSED_TOKENS = 8
_PREFIX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ProofListener:
    """Callbacks that report the progress of a proof.

    on_progress: how much is done and how much there is in all, of the work or of the time. on_estimate: seconds that
    the whole proof will take, known after the first job.
    """

    on_progress: Callable[[int, int], None] = lambda done, total: None
    on_estimate: Callable[[float], None] = lambda seconds: None


def prove(
    engine: Engine,
    questions: Sequence[EvalPrompt],
    max_tokens: int = 144,
    further: Sequence[DraftSource] = (),
    budget: TimeBudget | None = None,
    listener: ProofListener | None = None,
    acceptance: AcceptanceRule = EXACT,
    past: int = 0,
) -> ProofReport:
    """Compare drafted with plain decoding on an engine's model; the engine's own cache and drafter are left alone.

    Questions have the engine's adapters in turn, and none.

    further: sources beside those that every engine has; each gets runs of its own, and several get runs together.
    budget: None takes all the time there is. An interrupt ends the proof early, and what was covered is reported.
    acceptance: what drafted answers are decoded by. past: about how many tokens stand before each answer, texts of
    other questions before its own; where the context holds fewer, answers go on to its end. Each such prompt is scored
    once, and further answers to it take its rows from files, as of a prefix cache. Raises PromptError,
    ConfigError, or ProofError for a rule that is not exact, and where no draft was verified.
    """
    if engine.rule is not None:
        raise ProofError(
            "A lossy engine's answers may differ from those of plain decoding, so there is nothing to prove: give an "
            "engine of Engine.load."
        )
    if not acceptance.is_exact:
        raise ProofError(
            f"The acceptance rule {acceptance.name!r} is not exact, so its answers are not those of plain decoding: "
            "only exact rules can be proven."
        )
    reader = prompt_reader(engine.package, engine.tokenizer, engine.decoder.target, engine.decoder.config)
    prompts = [reader.read(question.prompt) for question in questions]
    prompts = behind_long_texts(prompts, past, engine.package.manifest.max_context, max_tokens)
    watched = budget or TimeBudget(), listener or ProofListener()
    prover = _Prover(engine, prompts, max_tokens, further, *watched, acceptance)
    refusal, is_interrupted = prover.refusal(), False
    with _prefix_files() as files:
        if past and prover.are_prefixes_kept:
            prover.keep_prefixes(files)
        try:
            prover.cover()
        except KeyboardInterrupt:
            is_interrupted = True
    report = prover.report(tuple(questions), refusal, is_interrupted)
    if report.num_drafted == 0 and report.counts.divergences == 0:
        if is_interrupted:
            raise KeyboardInterrupt
        raise ProofError(
            f"No draft was verified in {report.counts.tokens_compared} tokens, so nothing is proven: give longer "
            "answers (-n) or more time (--minutes)."
        )
    return report


@contextmanager
def _prefix_files() -> Iterator[PrefixFiles]:
    """Of a folder that goes with its block, behind what is still being written."""
    with tempfile.TemporaryDirectory(prefix="reader-edge-verify-") as folder:
        files = PrefixFiles(Path(folder), _PREFIX_BYTES)
        try:
            yield files
        finally:
            files.flush()


class _Prover:
    """The jobs of one proof."""

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[ReadPrompt],
        max_tokens: int,
        further: Sequence[DraftSource],
        budget: TimeBudget,
        listener: ProofListener,
        acceptance: AcceptanceRule,
    ) -> None:
        self.engine = engine
        self.target = engine.decoder.target
        self.prompts = prompts
        self.max_tokens = max_tokens
        self.budget = budget
        self.listener = listener
        adapters = [engine.adapters.get(name) for name in engine.adapters]
        self.plain = PlainAnswers(self.target, engine.decoder.config, prompts, max_tokens, acceptance, adapters)
        self.drafters = DrafterMaker(engine, further)
        cache = engine.decoder.cache
        self.are_prefixes_kept = cache.has_all_rows and cache.has_host_rows
        usual, others = settings(list(self.drafters.further), self.are_prefixes_kept)
        self.jobs = schedule(usual, others, _in_order(prompts))
        self.tallies = {setting: Tally(setting) for setting in (*usual, *others)}
        self.prefixes: PrefixFiles | None = None
        self.longest_text = 0
        self.num_done = 0
        self.is_begun = False

    def keep_prefixes(self, files: PrefixFiles) -> None:
        """Score prompts once."""
        self.prefixes = self.plain.prefixes = files

    @property
    def num_answers(self) -> int:
        """Answers that a whole proof decodes, plain ones and those compared with them."""
        num_answers = 5 * len(self.prompts)
        for setting in self.tallies:
            is_arriving = setting.variant.is_arriving
            num_answers += num_at_random(2 * len(self.prompts)) if is_arriving else len(self.prompts)
        return num_answers

    def refusal(self) -> str | None:
        """See ProofReport."""
        config = GenerationConfig(min(_REFUSED_TOKENS, self.max_tokens), SamplingConfig(), ignores_eos=True)
        first = self.prompts[0].text_ids[:1]
        requested = PlainAnswer(0, ReadPrompt("", first, first), config, [], [])
        plain = self.plain.decoded(requested, lambda: False, 0)
        vocab_size = self.target.manifest.vocab_size
        drafter = RetrievalDrafter(DraftConfig(), [HostileSource(range(vocab_size, vocab_size + 100))]).wait()
        decoder = make_trial_decoder(self.target, drafter, self.engine.decoder.config, RandomWidths())
        request = decoder.submit(first, plain.config)
        while request.is_running:
            decoder.step()
        emitted, error = request.output_token_ids, request.error
        is_named = isinstance(error, DraftError) and repr(HostileSource.name) in str(error)
        return str(error) if is_named and emitted == plain.token_ids[: len(emitted)] else None

    def cover(self) -> None:
        """Run jobs until everything was compared, or the time is over; those that were cut run again with more time."""
        jobs = self.jobs
        while jobs:
            self._run_jobs(jobs)
            jobs = [] if self.budget.is_over else [job for job in jobs if job.left]
            for job in jobs:
                job.prolong()
            self.plain.drop_short()

    def report(self, questions: tuple[EvalPrompt, ...], refusal: str | None, is_interrupted: bool) -> ProofReport:
        """What the jobs found so far."""
        left: dict[object, set[int]] = {setting: set() for setting in self.tallies}
        for job in self.jobs:
            left[job.setting] |= {*job.left}
        runs = tuple(tally.run(len(self.prompts) - len(left[setting])) for setting, tally in self.tallies.items())
        manifest, provider = self.engine.package.manifest, self.target.provider
        return ProofReport(
            questions,
            runs,
            refusal,
            provider,
            manifest.attention,
            manifest.precision,
            self.longest_text,
            self.budget.elapsed_s,
            is_interrupted,
        )

    def _run_jobs(self, jobs: Sequence[Job]) -> None:
        """In their order, each group ending with its last job."""
        last = {job.group: job for job in jobs}
        groups: dict[str, SharedDrafters] = {}
        try:
            for job in jobs:
                if self.budget.is_over and self.is_begun:
                    return
                self._run(job, groups.setdefault(job.group, SharedDrafters(self.drafters)))
                if last[job.group] is job:
                    groups.pop(job.group).close()
                self.num_done += not job.left
                self._report_progress()
        finally:
            for shared in groups.values():
                shared.close()

    def _run(self, job: Job, shared: SharedDrafters) -> None:
        """Compare one setting's answers to a few questions, as far as the job's share of the time goes."""
        variant, batch_size = job.setting.variant, job.setting.batch_size
        end = self.budget.end_of(job.share)
        min_tokens = FEW_TOKENS if self.is_begun else self.max_tokens  # the first pair is compared to its end
        answers = self._plain_answers(job, min_tokens)
        shared.take(answers, variant)
        is_drafted = job.setting.drafter != "none"
        seed = list(self.tallies).index(job.setting) + job.left[0]
        arrivals = at_random(answers, is_drafted, seed) if variant.is_arriving else all_at_once(answers, is_drafted)
        chunk = ARRIVING_CHUNK if variant.is_arriving else 0
        target, comparers = WatchedTarget(self.target), dict[Request, LogitComparer]()
        config = self.engine.decoder.config
        config = replace(config, max_batch=batch_size, prefill_chunk=chunk or config.prefill_chunk)
        planner = RandomWidths(seed=batch_size, splits=isinstance(self.target, PipelinedTarget))
        drafter = shared.drafter(job.setting)
        decoder = make_trial_decoder(target, drafter, config, planner, self.engine.width_report)
        decoder.prefill_budget.limit = chunk or None
        if self.prefixes is not None:
            decoder.slots.prefixes = PrefixCache(self.prefixes, b"", decoder.cache)
        is_over = self._is_over(end)
        cut: list[Arrival] | None = None
        with _prefix_files() as files:
            if variant.is_restored:
                before = make_trial_decoder(self.target, drafter, config, planner, self.engine.width_report)
                prefixes = PrefixCache(files, b"", decoder.cache)
                before.slots.prefixes = decoder.slots.prefixes = prefixes
                _answer(before, arrivals)
                prefixes.flush()
            try:
                cut = decode(decoder, arrivals, variant.reads_logits, comparers, is_over, (batch_size, min_tokens))
            finally:
                if variant.is_restored:  # a text too short for a file proves nothing of them
                    comparers = {
                        request: each
                        for request, each in comparers.items()
                        if request.stats.num_reused_tokens >= CHUNK or each.divergence is not None
                    }
                self.tallies[job.setting].add(comparers, target)
                lengths = (request.num_prompt_tokens + request.num_output_tokens for request in comparers)
                self.longest_text = max(self.longest_text, *lengths, 0)
        whole = {answer.question for answer in answers} - {each.plain.question for each in cut}
        whole -= {answer.question for answer in answers if not answer.is_whole}
        job.left = tuple(question for question in job.left if question not in whole)
        if not self.is_begun:
            self.is_begun = True
            num_tokens = self.plain.num_tokens + sum(each.num_tokens for each in comparers.values())
            self.listener.on_estimate(self.budget.elapsed_s / num_tokens * self.num_answers * self.max_tokens)

    def _plain_answers(self, job: Job, min_tokens: int) -> list[PlainAnswer]:
        """To as many of a job's questions as half its time is enough for, and at least to a batch of them."""
        setting, answers = job.setting, list[PlainAnswer]()
        is_half_over = self._is_over(self.budget.end_of(job.share / 2))
        for question in job.left:
            if len(answers) >= setting.batch_size and is_half_over():
                break
            end = self.budget.end_of(job.share / 2 / setting.batch_size)
            answers += self.plain.of(
                question, setting.variant, self._is_over(end), FEW_TOKENS if answers else min_tokens
            )
        return answers

    def _is_over(self, end: float) -> Callable[[], bool]:
        """Tells whether so many seconds are over, and others of the progress meanwhile."""

        def is_over() -> bool:
            self._report_progress()
            return self.budget.elapsed_s >= end

        return is_over

    def _report_progress(self) -> None:
        """In thousandths of the work, or of the time where more of that is over."""
        share = max(self.num_done / len(self.jobs), self.budget.elapsed_s / self.budget.seconds)
        self.listener.on_progress(round(1000 * min(share, 1)), 1000)


def _in_order(prompts: Sequence[ReadPrompt]) -> list[int]:
    """Short texts first: of little time, less goes into what is the same in every way. Behind two of them come two
    prompts with images, as they were given."""
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i].token_ids))
    texts = [i for i in by_length if not prompts[i].images]
    seeing = [i for i, prompt in enumerate(prompts) if prompt.images]
    turns = {i: number // 2 for few in (texts, seeing) for number, i in enumerate(few)}
    return sorted(turns, key=lambda i: turns[i])


def _answer(decoder: StepDecoder, arrivals: Sequence[Arrival]) -> None:
    """Answer all of these, whatever comes. Raises what a request failed of."""
    for each in arrivals:
        config = replace(each.plain.config, is_drafted=each.is_drafted)
        decoder.submit(each.plain.prompt.token_ids, config, images=each.plain.prompt.images, adapter=each.plain.adapter)
    while requests := decoder.step():
        for request in requests:
            if request.error is not None:
                raise request.error

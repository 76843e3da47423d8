"""Replaying recorded answers through a model's real passes: what would drafting save on its machine?"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np

from reader_edge.bench.recording import END_TOKEN_ID, RecordedRequest, read_recording
from reader_edge.bench.replay.rehearsal import RehearsalDrafter, Rehearser, Stretch, StretchTimes, choose_stretches
from reader_edge.bench.replay.replay import core_simulator, first_parameters
from reader_edge.bench.replay.replay_plan import ReplayPlan
from reader_edge.model_source import load_tokenizer
from reader_edge_runtime.assembly import settled_target
from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.decoding.draft_permission import DraftPermission, draft_permission
from reader_edge_runtime.drafting.sources.datastore.datastore import open_datastores
from reader_edge_runtime.errors import ConfigError, UserFileError
from reader_edge_runtime.measuring.cost_cache import load_or_measure
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelReplay:
    """One recording. num_left_out: stretches that the model's context could not hold."""

    times: tuple[StretchTimes, ...]
    num_left_out: int

    @property
    def plain_tokens_per_s(self) -> float:
        return sum(each.plain.num_decoded_tokens for each in self.times) / sum(each.plain_s for each in self.times)

    @property
    def drafted_tokens_per_s(self) -> float:
        return sum(each.drafted.num_decoded_tokens for each in self.times) / sum(each.drafted_s for each in self.times)

    @property
    def speedup(self) -> float:
        return self.drafted_tokens_per_s / self.plain_tokens_per_s

    @property
    def speedup_error(self) -> float:
        """Standard error of the speed-up as an estimate for the whole recording, by the jackknife over stretches."""
        n = len(self.times)
        if n < 2:
            return float("inf")
        others = [ModelReplay(self.times[:i] + self.times[i + 1 :], 0).speedup for i in range(n)]
        return float(np.std(others) * (n - 1) ** 0.5)

    @property
    def stats(self) -> GenerationStats:
        """Of the drafted way, all stretches together."""
        return GenerationStats.total(each.drafted for each in self.times)

    def speedup_by_task(self) -> dict[str, float]:
        tasks = sorted({each.task for each in self.times})
        return {task: ModelReplay(tuple(e for e in self.times if e.task == task), 0).speedup for task in tasks}


@dataclass(frozen=True, slots=True)
class ModelReplays:
    """Replays by file name, in the plan's order, and what they ran on.

    permission: of the model's engines, by which these figures do not go. max_tokens: of a stretch.
    """

    package: ModelPackage
    provider: str
    permission: DraftPermission
    priors: str
    max_tokens: int
    replays: tuple[tuple[str, ModelReplay], ...]

    @property
    def mean_speedup(self) -> float:
        return mean(replay.speedup for _, replay in self.replays)


def replay_on_model(
    package: ModelPackage,
    plan: ReplayPlan,
    config: EngineConfig,
    num_stretches: int,
    max_tokens: int,
    on_progress: Callable[[int, int], None],
) -> ModelReplays:
    """Replay so many stretches of each file. on_progress: gets stretches done and in all. Raises UserFileError."""
    manifest = package.manifest
    tokenizer, end_token_id = _tokenizer(package, plan.tokenizer)
    recordings = [read_recording(path, tokenizer, end_token_id) for path in plan.files]
    for path, requests in zip(plan.files, recordings, strict=True):
        _check_vocabulary(path, requests, manifest.vocab_size)
    chosen = [choose_stretches(each, num_stretches, max_tokens, manifest.max_context) for each in recordings]
    for path, (stretches, _) in zip(plan.files, chosen, strict=True):
        if not stretches:
            raise UserFileError(f"No answer of '{path}' fits this model's context of {manifest.max_context} tokens.")
    datastores = open_datastores(plan.datastores, tokenizer.fingerprint(), manifest.vocab_size)
    target, report = settled_target(package, config)
    permission = draft_permission(config, manifest.attention, report)
    cost = load_or_measure(target, config.threads, 1)
    num_all, num_done = sum(len(stretches) for stretches, _ in chosen), 0
    replays = []
    for which, (path, (stretches, num_left_out)) in enumerate(zip(plan.files, chosen, strict=True)):
        parameters = first_parameters(plan.priors, recordings, which)
        drafter = RehearsalDrafter(plan.is_history_used, parameters, datastores)
        times = []
        for each in time_stretches(Rehearser(target, cost, drafter, max_tokens), recordings[which], stretches):
            times.append(each)
            num_done += 1
            on_progress(num_done, num_all)
        replays.append((path.stem, ModelReplay(tuple(times), num_left_out)))
    return ModelReplays(package, target.provider, permission, plan.priors, max_tokens, tuple(replays))


def time_stretches(
    rehearser: Rehearser, requests: Sequence[RecordedRequest], stretches: Sequence[Stretch]
) -> Iterator[StretchTimes]:
    """Learn from all requests in order, from an empty history; decode the stretches both ways as they come."""
    simulator = core_simulator(rehearser.core)
    ways = (False, True)
    for r, request in enumerate(requests):
        for t, (context, output) in enumerate(simulator.answers(request)):
            for stretch in stretches:
                if (stretch.request, stretch.turn) == (r, t):
                    yield rehearser.rehearse(stretch, request.task, context, output, ways)
                    ways = ways[::-1]


def _tokenizer(package: ModelPackage, name: str | None) -> tuple[Tokenizer, int]:
    """The tokenizer and the token that closes each recorded answer."""
    if name is not None:
        return load_tokenizer(name), END_TOKEN_ID
    return Tokenizer.open(package), next(iter(package.manifest.eos_token_ids), 0)


def _check_vocabulary(path: Path, requests: Sequence[RecordedRequest], vocab_size: int) -> None:
    turns = [turn for request in requests for turn in request.turns]
    highest = max((max(part, default=0) for turn in turns for part in (turn.prompt, turn.output)), default=0)
    if highest >= vocab_size:
        raise ConfigError(
            f"'{path}' holds token id {highest} with this tokenizer, but the model's vocabulary has {vocab_size}: "
            "leave --tokenizer out to take the model's own."
        )

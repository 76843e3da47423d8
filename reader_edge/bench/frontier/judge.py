"""Replays of recorded answers that say what drafts reach, and what better ones would."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median

from reader_edge.bench.frontier.draft_stores import DraftStores
from reader_edge.bench.frontier.frontier import Frontier, Point, Reach, StorePoint
from reader_edge.bench.frontier.head import HeadNeed
from reader_edge.bench.frontier.judged_request import MAX_CANDIDATES, JudgedRequest
from reader_edge.bench.frontier.pass_curve import PassCurve, read_cost
from reader_edge.bench.frontier.rejections import Rejections
from reader_edge.bench.frontier.speculated import SpeculatedReplay
from reader_edge.bench.recording import RecordedRequest, read_recording
from reader_edge.bench.replay.replay import check_successors
from reader_edge.bench.replay.replay_plan import ReplayPlan
from reader_edge.bench.replay.simulator import Simulator
from reader_edge_runtime.assembly import settled_target
from reader_edge_runtime.config import DraftConfig, EngineConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.datastore.datastore import open_datastores
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.measuring.cost_cache import load_or_measure
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer

Draft = Callable[[JudgedRequest], DraftTree]


@dataclass(frozen=True, slots=True)
class Judge:
    """One drafter after another is led through all answers in their order, and keeps what they teach.

    temperature: that the answers were sampled at. speculated: replays with the package's speculator, where asked for.
    """

    requests: Sequence[RecordedRequest]
    stores: DraftStores
    curve: PassCurve
    temperature: float
    speculated: SpeculatedReplay | None = None

    def frontier(
        self,
        budgets: Sequence[int],
        head_shares: Sequence[float],
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Frontier:
        """budgets: drafted nodes. head_shares: parts of a one-node pass that heads take.

        on_progress: gets replays done and in all. Raises ConfigError for nodes whose pass was not measured, and where
        no answer has a token to draft.
        """
        if max(budgets) > self.curve.max_nodes:
            raise ConfigError(
                f"A pass over {max(budgets)} drafted nodes was not measured: name {self.curve.max_nodes} at most."
            )
        sizes = self.stores.sizes(self.requests)
        total = 1 + 3 * len(budgets) + len(sizes)
        paying = self._reach(lambda request: request.draft_paying(self.curve), self.curve.max_nodes)
        points = []
        for done, num_nodes in enumerate(budgets):
            on_progress(1 + 3 * done, total)
            points.append(self._point(num_nodes))
        frontier = Frontier(self.curve, tuple(points), paying, (), ())
        fastest = frontier.fastest
        stores = []
        for done, size in enumerate(sizes):
            on_progress(1 + 3 * len(budgets) + done, total)
            judge = replace(self, stores=self.stores.of_size(size))
            reach = judge._ours(fastest.num_nodes)
            stores.append(StorePoint(size, reach.store_bytes[size.store], reach))
        ours, plain_s = fastest.ours, self.curve.plain_s
        heads = tuple(HeadNeed.of(ours.stats, ours.step_s, share, plain_s) for share in head_shares)
        return replace(frontier, stores=tuple(stores), heads=heads)

    def _point(self, num_nodes: int) -> Point:
        ours = self._ours(num_nodes)
        best = self._reach(lambda request: request.draft_best(num_nodes), MAX_CANDIDATES)
        oracle = self._reach(lambda request: request.draft_answer(num_nodes), num_nodes)
        as_ours = partial(replace, beside_s=ours.beside_s)  # who knows the answer is not asked how long that took
        speculated = None
        if self.speculated is not None:
            speculated = self.speculated.speculated(self.requests, num_nodes, self.curve)
        return Point(num_nodes, ours, as_ours(best), as_ours(oracle), speculated)

    def _ours(self, num_nodes: int) -> Reach:
        return self._reach(lambda request: request.draft(num_nodes), num_nodes)

    def _reach(self, draft: Draft, max_nodes: int) -> Reach:
        """A replay by a drafter of trees of max_nodes drafted nodes."""
        core, rejections = self.stores.new_core(max_nodes), Rejections()
        begin = partial(JudgedRequest, core, rejections, self.temperature)
        simulator = Simulator(begin, lambda request, num_left: draft(request))
        for request in self.requests:
            simulator.decode(request)
        stats = simulator.stats
        if not stats.num_steps:
            raise ConfigError("No recorded answer has a token to draft: record longer ones.")
        # Medians, since a busy machine makes a few steps long; how many tokens a step has is known.
        beside_s = (median(simulator.draft_us) + stats.acceptance_length * median(simulator.learn_us)) / 1e6
        stats_by_task = dict(simulator.stats_by_task)
        return Reach(stats_by_task, rejections, self.curve.passes_s(stats), beside_s, self.stores.num_bytes(core))


def open_judge(
    plan: ReplayPlan,
    package: ModelPackage,
    config: EngineConfig,
    cost_file: Path | None,
    temperature: float,
    is_speculated: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Judge:
    """Of a plan's first file, with the tokenizer and the table of a package.

    cost_file: pass times as `bench cost --json` printed them; None measures the package's on this machine, unless they
    are kept. is_speculated: also with the package's speculator. on_progress: gets how far measuring is. Raises
    ConfigError, TokenizerError, DatastoreError, PackageError.
    """
    tokenizer = Tokenizer.open(package)
    fingerprint = tokenizer.fingerprint()
    requests = read_recording(plan.files[0], tokenizer)
    if plan.is_logits_used:
        check_successors(plan.files[:1], [requests])
    defaults = DraftConfig()
    stores = DraftStores(
        defaults.max_history_tokens if plan.is_history_used else 0,
        defaults.max_recorded_pairs if plan.is_logits_used else 0,
        tuple(open_datastores(plan.datastores, fingerprint, tokenizer.vocab_size)),
        SuccessorTable.of_package(package, fingerprint) if plan.is_logits_used else None,
    )
    if cost_file is not None:
        cost = read_cost(cost_file)
    else:
        target, _ = settled_target(package, config)
        cost = load_or_measure(target, config.threads, 1, on_progress=on_progress)
    speculated = SpeculatedReplay(package, config, stores.table, temperature) if is_speculated else None
    return Judge(requests, stores, PassCurve.of_cost(cost, _mean_past(requests)), temperature, speculated)


def _mean_past(requests: Sequence[RecordedRequest]) -> int:
    """Tokens before the mean token of an answer."""
    pasts, counts = [], []
    for request in requests:
        past = 0
        for turn in request.turns:
            past += len(turn.prompt)
            pasts.append(past + len(turn.output) / 2)
            counts.append(len(turn.output))
            past += len(turn.output)
    return round(fmean(pasts, counts)) if sum(counts) else 0

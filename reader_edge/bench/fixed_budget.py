"""Acceptance by source, at fixed numbers of drafted nodes: independent of this machine's speed."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from reader_edge.bench.simulator import MAX_DEPTH
from reader_edge.prompts import EvalPrompt, by_category
from reader_edge.terminal.console import figures_table
from reader_edge_runtime import DraftConfig, Engine, GenerationConfig, GenerationStats
from reader_edge_runtime.assembly import make_decoder, make_trial_decoder
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.draft_sources import FilePath
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore, open_datastores
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.drafting.sources.successor_store import SuccessorTable
from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers
from reader_edge_runtime.measuring.cost_cache import load_or_measure


@dataclass(frozen=True, slots=True)
class AvailableSources:
    """All that may be drafted from beside a request's own text and past ones. None: the package has none."""

    datastores: Sequence[Datastore]
    table: SuccessorTable | None
    warmup_answers: WarmupAnswers | None
    further: Sequence[DraftSource]

    @classmethod
    def of_engine(
        cls, engine: Engine, datastores: Sequence[FilePath] = (), further: Sequence[DraftSource] = ()
    ) -> "AvailableSources":
        """What an engine's package has, with files of `reader-edge datastore build`. Raises DatastoreError."""
        fingerprint, package = engine.tokenizer.fingerprint(), engine.package
        opened = open_datastores(datastores, fingerprint, package.manifest.vocab_size) if datastores else []
        table, warmup_answers = SuccessorTable.of_package(package, fingerprint), WarmupAnswers.of_package(package)
        return cls(opened, table, warmup_answers, further)

    def sets(self, is_warm: bool) -> list[tuple[str, ...]]:
        """Names of sources, each set with one more than the last; where there are datastores, also with them.

        is_warm: with past requests.
        """
        names = ["logits", *["table"] * (self.table is not None), *["own answers"] * (self.warmup_answers is not None)]
        names += [source.name for source in self.further]
        first, last = ("context", *["history"] * is_warm), [(), ("datastore",)] if self.datastores else [()]
        subsets = [tuple(names[:count]) for count in range(len(names) + 1)]
        return [(*first, *middle, *end) for middle, end in itertools.product(subsets, last)]

    def drafter(self, names: Sequence[str], config: DraftConfig) -> RetrievalDrafter:
        """One that drafts from the sources of these names alone, ready."""
        used = replace(
            config,
            is_history_used="history" in names or "own answers" in names,
            is_logits_used="logits" in names,
        )
        return RetrievalDrafter(
            used,
            [source for source in self.further if source.name in names],
            datastores=self.datastores if "datastore" in names else (),
            table=self.table if "table" in names else None,
            warmup_answers=self.warmup_answers if "own answers" in names else None,
        ).wait()

    def engines(self, engine: Engine) -> dict[str, Engine]:
        """One for each set of an engine that has no past, by its names; the last, of all sources, is the engine itself.

        They share its model, and have KV caches and planners of their own.
        """
        *sets, everything = self.sets(is_warm=False)
        return {" + ".join(names): self._engine(engine, names) for names in sets} | {" + ".join(everything): engine}

    def _engine(self, engine: Engine, names: Sequence[str]) -> Engine:
        target, config, report = engine.decoder.target, engine.decoder.config, engine.width_report
        costs = [load_or_measure(target, config.threads, 1)] if config.is_calibrated else []
        decoder = make_decoder(target, self.drafter(names, DraftConfig()), config, costs, report)
        return Engine(engine.package, engine.tokenizer, decoder, report)


@dataclass(frozen=True, slots=True)
class BudgetRun:
    """All questions, answered with one set of sources and up to num_nodes drafted nodes a step.

    is_warm: whether the drafter kept what the questions before had taught it. answers, stats: by question.
    """

    sources: str
    is_warm: bool
    num_nodes: int
    answers: tuple[tuple[int, ...], ...]
    stats: tuple[GenerationStats, ...]


class FixedBudget(Planner):
    """Drafts up to num_nodes nodes in every step, and verifies all of them whether they pay or not."""

    is_plain_due = False

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        self.max_drafted = num_nodes + 1

    def choose(
        self, requests: Sequence[Request], drafts: Sequence[DraftTree | None], pasts: Sequence[int]
    ) -> tuple[list[int], list[float]]:
        """Every tree has all of its draft's nodes."""
        return [1 if draft is None else len(draft) for draft in drafts], [math.inf] * len(drafts)


def bench_budgets(
    engine: Engine,
    questions: Sequence[EvalPrompt],
    config: GenerationConfig,
    budgets: Sequence[int],
    available: AvailableSources,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[BudgetRun]:
    """Answer every question with each set of sources and each budget, from an empty KV cache.

    Fresh drafters know nothing but what ships with them, and so have no history. on_progress: gets answers done and
    answers in all.
    """
    sets = [(is_warm, names) for is_warm in (False, True) for names in available.sets(is_warm)]
    num_all, num_done = len(sets) * len(budgets) * len(questions), itertools.count(1)
    runs = []
    for (is_warm, names), num_nodes in itertools.product(sets, budgets):
        drafter = available.drafter(names, budget_config(num_nodes))
        requests = []
        for question in questions:
            if not is_warm:
                drafter.forget()
            requests.append(answer_at(engine, question, config, drafter, num_nodes))
            on_progress(next(num_done), num_all)
        answers = tuple(tuple(request.output_token_ids) for request in requests)
        stats = tuple(request.stats for request in requests)
        runs.append(BudgetRun(" + ".join(names), is_warm, num_nodes, answers, stats))
    return runs


def answer_at(
    engine: Engine, question: EvalPrompt, config: GenerationConfig, drafter: Drafter, num_nodes: int
) -> Request:
    """The request that answered a question on the engine's model, with so many drafted nodes in every step.

    Drafts may hold more than the answer has room for, so that its last steps are drafted like all others.
    """
    own = replace(engine.decoder.config, max_batch=1)
    # Where an engine leaves drafts out, this tells what they would be.
    decoder = make_trial_decoder(engine.decoder.target, drafter, own, FixedBudget(num_nodes), engine.width_report)
    num_emitted = itertools.count(1)
    endless = replace(config, max_tokens=engine.package.manifest.max_context)
    request = decoder.submit(
        engine.encode_prompt(question.prompt), endless, is_stop=lambda _: next(num_emitted) >= config.max_tokens
    )
    decoder.finish(request)
    return request


def budget_config(num_nodes: int) -> DraftConfig:
    """Of drafts with so many nodes below the pending token."""
    return DraftConfig(max_nodes=num_nodes + 1, max_depth=MAX_DEPTH)


def budget_fields(questions: Sequence[EvalPrompt], runs: Sequence[BudgetRun]) -> list[dict[str, object]]:
    """Every run, ready for JSON."""
    return [
        {
            "sources": run.sources,
            "is_warm": run.is_warm,
            "nodes": run.num_nodes,
            **_fields(run.stats),
            "categories": {name: _fields(stats) for name, stats in by_category(questions, run.stats).items()},
        }
        for run in runs
    ]


def budget_table(questions: Sequence[EvalPrompt], runs: Sequence[BudgetRun]) -> Table:
    """A row for each set of sources, a column for each number of nodes; for each category, and for all."""
    rows: dict[tuple[str, str], list[BudgetRun]] = {}
    for run in runs:
        rows.setdefault(("warm" if run.is_warm else "fresh", run.sources), []).append(run)
    budgets = dict.fromkeys(run.num_nodes for run in runs)
    title = "Acceptance length by drafted nodes a step, whatever a pass takes (warm: prompts before are remembered)"
    table = figures_table(title, "", "drafter", *(f"{num} nodes" for num in budgets))
    table.add_column("drafted from")
    for category in [*by_category(questions, questions), "all"]:
        table.add_section()
        for (drafter, sources), of_row in rows.items():
            stats = [{**by_category(questions, run.stats), "all": run.stats}[category] for run in of_row]
            lengths = (f"{GenerationStats.total(each).acceptance_length:.2f}" for each in stats)
            table.add_row(category, drafter, *lengths, sources)
    return table


def _fields(stats: Sequence[GenerationStats]) -> dict[str, object]:
    total = GenerationStats.total(stats)
    return {
        "acceptance_length": total.acceptance_length,
        "tokens": total.num_tokens,
        "steps": total.num_steps,
        "drafted_by_source": dict(total.drafted_by_source),
        "accepted_by_source": dict(total.accepted_by_source),
    }

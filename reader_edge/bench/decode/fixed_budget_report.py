"""What `reader-edge bench decode --nodes` tells."""

from collections.abc import Sequence

from rich.table import Table

from reader_edge.bench.decode.fixed_budget import BudgetRun
from reader_edge.eval_prompt import EvalPrompt, by_category
from reader_edge.terminal.console import figures_table
from reader_edge_runtime import GenerationStats


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

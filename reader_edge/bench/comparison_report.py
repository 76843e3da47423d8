"""What `run --compare` tells."""

from rich.table import Table

from reader_edge.bench.comparison import ROUNDS, Comparison
from reader_edge.chat.answer_report import stats_fields
from reader_edge_runtime import Engine


def comparison_fields(engine: Engine, comparison: Comparison) -> dict[str, object]:
    """A comparison, ready for JSON; the statistics are those of the last drafted round."""
    return {
        **speed_fields(comparison),
        "text": comparison.plain[0].text,
        "token_ids": comparison.plain[0].token_ids,
        "finish_reason": comparison.plain[0].finish_reason,
        "rounds": ROUNDS,
        "stats": stats_fields(engine, comparison.drafted_stats),
    }


def speed_fields(comparison: Comparison) -> dict[str, object]:
    """Speeds and acceptance, ready for JSON."""
    return {
        "identical": comparison.is_identical,
        "plain_tokens_per_s": comparison.plain_tokens_per_s,
        "drafted_tokens_per_s": comparison.drafted_tokens_per_s,
        "speedup": comparison.speedup,
        "acceptance_length": comparison.drafted_stats.acceptance_length,
    }


def comparison_table(comparison: Comparison) -> Table:
    """A comparison as a table."""
    num_tokens = comparison.plain[0].stats.num_tokens
    title = f"{num_tokens} tokens, median of {ROUNDS} rounds each, in alternating order"
    table = Table("", "tokens/s", "speed-up", "acceptance length", "tokens", title=title, title_justify="left")
    verdict = "identical" if comparison.is_identical else "DIFFERENT"
    length = comparison.drafted_stats.acceptance_length
    table.add_row("plain", f"{comparison.plain_tokens_per_s:.1f}", "1.00x", "1.00", "")
    table.add_row(
        "drafted", f"{comparison.drafted_tokens_per_s:.1f}", f"{comparison.speedup:.2f}x", f"{length:.2f}", verdict
    )
    return table

"""What `reader-edge bench replay --model` prints."""

from dataclasses import asdict
from statistics import mean

from rich.table import Table

from reader_edge.bench.model_replay import ModelReplay, ModelReplays
from reader_edge.terminal.console import figures_table, print_report
from reader_edge_runtime.stats import STEP_PARTS

NOTE = (
    "A replay: recorded tokens are forced through real passes of this package. It tells what drafting saves on this "
    "machine for such text, and nothing of what this model would write."
)


def model_replay_fields(report: ModelReplays) -> dict[str, object]:
    """All figures and their circumstances, ready for JSON."""
    manifest = report.package.manifest
    return {
        "note": NOTE,
        "model": manifest.source_name,
        "precision": manifest.precision,
        "attention": manifest.attention,
        "provider": report.provider,
        "max_tokens": report.max_tokens,
        "priors": report.priors,
        "mean_speedup": report.mean_speedup,
        "files": [{"file": file, **_fields(replay)} for file, replay in report.replays],
    }


def _fields(replay: ModelReplay) -> dict[str, object]:
    stats = replay.stats
    num_steps = max(1, stats.num_steps)
    return {
        "plain_tokens_per_s": replay.plain_tokens_per_s,
        "drafted_tokens_per_s": replay.drafted_tokens_per_s,
        "speedup": replay.speedup,
        "speedup_error": replay.speedup_error if len(replay.times) > 1 else None,
        "speedup_by_task": replay.speedup_by_task(),
        "acceptance_length": stats.acceptance_length,
        "nodes_per_pass": _nodes_per_pass(replay),
        "rested_steps": stats.num_rested_steps,
        "steps": stats.num_steps,
        "step_s_by_part": {part.removesuffix("_s"): getattr(stats, part) / num_steps for part in STEP_PARTS},
        "left_out": replay.num_left_out,
        "stretches": [
            {
                **asdict(each.stretch),
                "past": each.past,
                "plain_s": each.plain_s,
                "plain_tokens": each.plain.num_decoded_tokens,
                "drafted_s": each.drafted_s,
                "drafted_tokens": each.drafted.num_decoded_tokens,
                "acceptance_length": each.drafted.acceptance_length,
            }
            for each in replay.times
        ],
    }


def print_model_replays(report: ModelReplays) -> None:
    """Print the main figures on standard output."""
    left_out = [
        f"{file}: {replay.num_left_out} stretches are beyond this model's context and left out."
        for file, replay in report.replays
        if replay.num_left_out
    ]
    print_report(_table(report), NOTE, *left_out)


def _table(report: ModelReplays) -> Table:
    manifest = report.package.manifest
    title = (
        f"Replay on {manifest.source_name}, {manifest.precision} {manifest.attention}: decoding only, stretches of "
        f"{report.max_tokens} tokens, both ways in turn; priors: {report.priors}"
    )
    figures = ("stretches", "tokens before", "plain tokens/s", "drafted", "speed-up", "acceptance length")
    table = figures_table(title, "recording", *figures, "nodes a pass", "rested steps")
    for file, replay in report.replays:
        stats = replay.stats
        error = f" ± {replay.speedup_error:.2f}" if len(replay.times) > 1 else ""
        table.add_row(
            file,
            str(len(replay.times)),
            f"{mean(each.past for each in replay.times):.0f}",
            f"{replay.plain_tokens_per_s:.1f}",
            f"{replay.drafted_tokens_per_s:.1f}",
            f"{replay.speedup:.2f}x{error}",
            f"{stats.acceptance_length:.2f}",
            f"{_nodes_per_pass(replay):.1f}",
            f"{stats.num_rested_steps / max(1, stats.num_steps):.0%}",
        )
    if len(report.replays) > 1:
        table.add_section()
        table.add_row("mean", "", "", "", "", f"{report.mean_speedup:.2f}x", "", "", "")
    return table


def _nodes_per_pass(replay: ModelReplay) -> float:
    widths = replay.stats.steps_by_width
    return sum(width * count for width, count in widths.items()) / max(1, widths.total())

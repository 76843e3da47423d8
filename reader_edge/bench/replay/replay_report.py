"""What `reader-edge bench replay` prints, without a model and with one."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import mean

import click
import numpy as np
from rich.table import Table

from reader_edge.bench.replay.model_replay import ModelReplay, ModelReplays
from reader_edge.bench.replay.replay import Replays
from reader_edge.terminal.console import figures_table, print_report
from reader_edge.terminal.control_characters import visible
from reader_edge_runtime.stats import STEP_PARTS, GenerationStats

NOTE = (
    "A replay: recorded tokens are forced through real passes of this package. It tells what drafting saves on this "
    "machine for such text, and nothing of what this model would write."
)

_TASK = "  "


def replay_fields(file: str, replays_by_nodes: Replays) -> dict[str, object]:
    """All figures of a file, ready for JSON; those without a node budget in them are of the largest one."""
    replays = {str(n): replay for n, replay in replays_by_nodes.items()}
    largest = replays_by_nodes[max(replays_by_nodes)]
    stats = largest.stats
    return {
        "file": file,
        "acceptance_length": {n: each.stats.acceptance_length for n, each in replays.items()},
        "acceptance_length_by_task": {
            task: {n: each.stats_by_task[task].acceptance_length for n, each in replays.items()}
            for task in sorted(largest.stats_by_task)
        },
        "nodes_per_step": {n: _nodes_per_step(each.stats) for n, each in replays.items()},
        "draft_us_p50": float(np.median(largest.draft_us)),
        "draft_us_p99": float(np.percentile(largest.draft_us, 99)),
        "draft_us_p50_by_nodes": {n: float(np.median(each.draft_us)) for n, each in replays.items()},
        "learn_us_per_token": float(np.median(largest.learn_us)),
        "learn_us_per_token_p99": float(np.percentile(largest.learn_us, 99)),
        "learn_us_per_prompt_token": float(np.median(largest.prompt_us)),
        "drafted_by_source": dict(stats.drafted_by_source),
        "accepted_by_source": dict(stats.accepted_by_source),
        "calibration": _calibration(stats),
        "bytes": largest.num_bytes,
    }


def _nodes_per_step(stats: GenerationStats) -> float:
    return stats.num_drafted_tokens / max(1, stats.num_steps)


def _calibration(stats: GenerationStats) -> list[dict[str, float]]:
    """For each tenth of predicted values that has nodes: its lower end, mean prediction, share accepted, nodes."""
    return [
        {
            "from": tenth / 10,
            "predicted": stats.predicted_by_tenth[tenth] / 1000 / num,
            "observed": stats.accepted_by_tenth[tenth] / num,
            "nodes": num,
        }
        for tenth, num in sorted(stats.drafted_by_tenth.items())
    ]


def print_replays(files: Sequence[tuple[str, Replays]]) -> None:
    """Print the main figures on standard output."""
    budgets = list(files[0][1])
    width = max(len(name) for file, replays in files for name in (file, *(_TASK + task for task in _tasks(replays))))
    header = " ".join(f"{f'{n} nodes':>9}" for n in budgets)
    click.echo(f"{'':{width}} {header}  drafted  draft µs (p99)  learn µs (p99)   MB  accepted from")
    for file, replays in files:
        fields, largest = replay_fields(file, replays), replays[max(budgets)]
        stats = largest.stats
        accepted = ", ".join(f"{name} {count}" for name, count in stats.accepted_by_source.most_common())
        click.echo(
            f"{file:{width}} {_lengths([each.stats for each in replays.values()])}  "
            f"{_nodes_per_step(stats):7.1f}  {fields['draft_us_p50']:7.1f} ({fields['draft_us_p99']:4.0f})  "
            f"{fields['learn_us_per_token']:8.2f} ({fields['learn_us_per_token_p99']:3.0f}) "
            f"{largest.num_bytes / 1e6:4.0f}  {accepted}"
        )
        for task in _tasks(replays):
            by_nodes = [each.stats_by_task[task] for each in replays.values()]
            click.echo(visible(f"{_TASK + task:{width}} {_lengths(by_nodes)}"))


def _lengths(by_nodes: Sequence[GenerationStats]) -> str:
    return " ".join(f"{stats.acceptance_length:9.3f}" for stats in by_nodes)


def _tasks(replays: Replays) -> list[str]:
    """The tasks of a file that has several: each gets a line of its own."""
    tasks = sorted(next(iter(replays.values())).stats_by_task)
    return tasks if len(tasks) > 1 else []


def model_replay_fields(report: ModelReplays) -> dict[str, object]:
    """All figures and their circumstances, ready for JSON."""
    manifest = report.package.manifest
    return {
        "note": NOTE,
        "model": manifest.source_name,
        "precision": manifest.precision,
        "attention": manifest.attention,
        "provider": report.provider,
        "drafts": report.permission.scope,
        "drafts_reason": report.permission.reason,
        "max_tokens": report.max_tokens,
        "priors": report.priors,
        "mean_speedup": report.mean_speedup,
        "files": [{"file": file, **_model_fields(replay)} for file, replay in report.replays],
    }


def _model_fields(replay: ModelReplay) -> dict[str, object]:
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
        "backoff_steps": stats.num_backoff_steps,
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
    off = []
    if not report.permission.is_on:
        off = [f"Engines do not draft this model on this machine ({report.permission.reason}): drafts were made here."]
    print_report(_table(report), NOTE, *left_out, *off)


def _table(report: ModelReplays) -> Table:
    manifest = report.package.manifest
    title = (
        f"Replay on {manifest.source_name}, {manifest.precision} {manifest.attention}: decoding only, stretches of "
        f"{report.max_tokens} tokens, both ways in turn; priors: {report.priors}"
    )
    figures = ("stretches", "tokens before", "plain tokens/s", "drafted", "speed-up", "acceptance length")
    table = figures_table(title, "recording", *figures, "nodes a pass", "backoff steps")
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
            f"{stats.num_backoff_steps / max(1, stats.num_steps):.0%}",
        )
    if len(report.replays) > 1:
        table.add_section()
        table.add_row("mean", "", "", "", "", f"{report.mean_speedup:.2f}x", "", "", "")
    return table


def _nodes_per_pass(replay: ModelReplay) -> float:
    widths = replay.stats.steps_by_width
    return sum(width * count for width, count in widths.items()) / max(1, widths.total())

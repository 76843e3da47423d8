"""What `reader-edge bench replay` prints."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from reader_edge.bench.replay import (
    ReplayResult,
    first_parameters,
    read_recording,
    replay,
)
from reader_edge.tokenizer_source import load_tokenizer
from reader_edge_runtime.drafting.sources.datastore.datastore import open_datastores

_TASK = "  "


@dataclass(frozen=True, slots=True)
class FileReport:
    """One recording. results: what was found, by node budget."""

    file: str
    results: dict[int, ReplayResult]


def replay_files(
    files: Sequence[Path],
    tokenizer_name: str,
    budgets: Sequence[int],
    is_history_used: bool,
    priors: str,
    datastore_paths: Sequence[str] = (),
) -> list[FileReport]:
    """Replay each file with each budget. priors: "shipped", "others" (learned from the other files) or "none"."""
    tokenizer = load_tokenizer(tokenizer_name)
    datastores = open_datastores(datastore_paths, tokenizer.fingerprint(), tokenizer.vocab_size)
    recordings = [read_recording(path, tokenizer) for path in files]
    reports = []
    for which, (path, requests) in enumerate(zip(files, recordings, strict=True)):
        others = recordings[:which] + recordings[which + 1 :]
        parameters = first_parameters(priors, others)
        results = {n: replay(requests, n, is_history_used, parameters, datastores) for n in budgets}
        reports.append(FileReport(path.stem, results))
    return reports


def print_json(reports: Sequence[FileReport]) -> None:
    click.echo(json.dumps({"files": [_fields(report) for report in reports]}))


def _fields(report: FileReport) -> dict[str, object]:
    largest = report.results[max(report.results)]
    draft_us = {str(n): r.draft_us for n, r in report.results.items()}
    return {
        "file": report.file,
        "acceptance_length": {str(n): r.acceptance_length for n, r in report.results.items()},
        "acceptance_length_by_task": {
            task: {str(n): r.acceptance_length_of(task) for n, r in report.results.items()}
            for task in sorted(largest.steps_by_task)
        },
        "nodes_per_step": {str(n): r.nodes_per_step for n, r in report.results.items()},
        "draft_us_p50": float(np.median(largest.draft_us)),
        "draft_us_p99": float(np.percentile(largest.draft_us, 99)),
        "draft_us_p50_by_nodes": {n: float(np.median(us)) for n, us in draft_us.items()},
        "learn_us_per_token": float(np.median(largest.learn_us)),
        "learn_us_per_token_p99": float(np.percentile(largest.learn_us, 99)),
        "learn_us_per_prompt_token": float(np.median(largest.prompt_us)),
        "drafted_by_source": dict(largest.drafted),
        "accepted_by_source": dict(largest.accepted),
        "calibration": [
            {"from": low, "predicted": predicted, "observed": observed, "nodes": nodes}
            for low, predicted, observed, nodes in largest.calibration()
        ],
        "bytes": largest.num_bytes,
    }


def print_table(reports: Sequence[FileReport]) -> None:
    budgets = list(reports[0].results)
    names = [report.file for report in reports] + [_TASK + task for report in reports for task in _tasks(report)]
    width = max(map(len, names))
    header = " ".join(f"{f'{n} nodes':>9}" for n in budgets)
    click.echo(f"{'':{width}} {header}  drafted  draft µs (p99)  learn µs (p99)   MB  accepted from")
    for report in reports:
        fields, largest = _fields(report), report.results[max(budgets)]
        lengths = " ".join(f"{r.acceptance_length:9.3f}" for r in report.results.values())
        accepted = ", ".join(f"{name} {count}" for name, count in largest.accepted.most_common())
        click.echo(
            f"{report.file:{width}} {lengths}  {largest.nodes_per_step:7.1f}  "
            f"{fields['draft_us_p50']:7.1f} ({fields['draft_us_p99']:4.0f})  "
            f"{fields['learn_us_per_token']:8.2f} ({fields['learn_us_per_token_p99']:3.0f}) "
            f"{largest.num_bytes / 1e6:4.0f}  {accepted}"
        )
        for task in _tasks(report):
            lengths = " ".join(f"{r.acceptance_length_of(task):9.3f}" for r in report.results.values())
            click.echo(f"{_TASK + task:{width}} {lengths}")


def _tasks(report: FileReport) -> list[str]:
    """The tasks of a file that has several, for lines of their own."""
    tasks = sorted(report.results[max(report.results)].steps_by_task)
    return tasks if len(tasks) > 1 else []

"""The examination: first the machine, then what can be loaded, then engines and a package.

Whatever may end a process is done in another one, and what it does not tell in time is left out.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.examination.loading import fatal_loading, told_end
from reader_edge_runtime.examination.machine.cores import check_cores
from reader_edge_runtime.examination.machine.graphics import check_graphics
from reader_edge_runtime.examination.machine.storage import check_cache, check_huge_pages
from reader_edge_runtime.examination.machine.wheels import check_wheels
from reader_edge_runtime.examination.step_process import StepsRun, run_steps
from reader_edge_runtime.examination.surroundings import Surroundings

MACHINE_CHECKS: Sequence[Callable[[Surroundings], Iterator[Finding]]] = (
    check_wheels,
    check_cores,
    check_graphics,
    check_cache,
    check_huge_pages,
)


def examine_machine(surroundings: Surroundings, ends_at: float) -> list[Finding]:
    """What is to be said of the machine and of what reader-edge loads. ends_at: of `time.monotonic`."""
    findings = [finding for check in MACHINE_CHECKS for finding in check(surroundings)]
    is_missing = any(finding.severity is Severity.BROKEN for finding in findings)  # a wheel, which cannot load either
    run = run_steps("loading", (), surroundings, ends_at)
    findings += [each for each in run.findings if not (is_missing and each.severity is Severity.BROKEN)]
    if run.returncode is None:
        findings.append(_cut_off(run))
    elif run.returncode and run.begun:
        findings.append(fatal_loading(run.begun[-1], run.returncode, surroundings))
    elif run.returncode:
        reason = (run.stderr.strip().splitlines() or [told_end(run.returncode)])[-1]
        findings.append(Finding("loading", Severity.BROKEN, f"Python cannot be started ({reason:.200}).", _REPORT))
    return findings


def examine_package(folder: Path, surroundings: Surroundings, ends_at: float) -> list[Finding]:
    """What is to be said of engines and of a package; only where `examine_machine` found nothing broken."""
    findings: list[Finding] = []
    skipped: list[str] = []
    run = StepsRun()
    while time.monotonic() < ends_at:
        run = run_steps("engines", [str(folder), *skipped], surroundings, ends_at)
        findings += run.findings
        if run.returncode is None:
            return [*findings, _cut_off(run)]
        if not run.returncode:
            return findings
        if not run.begun:  # it would end again
            return [*findings, _fatal("engines", run.returncode)]
        findings.append(_fatal(run.begun[-1], run.returncode))
        skipped += run.begun
    return [*findings, _cut_off(run)]


_REPORT = "Report it, with what `reader-edge doctor --json` prints."


def _fatal(step: str, returncode: int) -> Finding:
    found = f"Looking at this ended the process ({told_end(returncode)})."
    remedy = "Update the driver or the library behind it, or run without it (--provider cpu, --no-native)."
    return Finding(step, Severity.BROKEN, found, remedy)


def _cut_off(run: StepsRun) -> Finding:
    """Of time that was over."""
    left = [step for step in run.planned if step not in run.begun]
    found = "The examination took too long and was cut off here: the machine is busy, or the model is large"
    found += f". Not looked at: {', '.join(left)}." if left else "."
    remedy = "Run it again when the machine is quiet; `reader-edge bench cost MODEL` loads and measures a large model."
    return Finding(run.begun[-1] if run.begun else "loading", Severity.NOTE, found, remedy)

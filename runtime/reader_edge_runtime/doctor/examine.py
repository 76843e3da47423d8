"""The order of `doctor`'s checks: first the machine, then what can be loaded, then engines and a package.

Whatever may end a process is done in another one, and what it does not tell in time is left out.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from reader_edge_runtime.doctor.check_result import CheckResult, Severity, StepsOutcome, run_steps
from reader_edge_runtime.doctor.environment import Environment
from reader_edge_runtime.doctor.loading import end_words, fatal_loading
from reader_edge_runtime.doctor.machine import check_cache, check_cores, check_graphics, check_huge_pages, check_wheels

MACHINE_CHECKS: Sequence[Callable[[Environment], Iterator[CheckResult]]] = (
    check_wheels,
    check_cores,
    check_graphics,
    check_cache,
    check_huge_pages,
)


def examine_machine(environment: Environment, ends_at: float) -> list[CheckResult]:
    """Results for the machine and of what reader-edge loads. ends_at: of `time.monotonic`."""
    results = [result for check in MACHINE_CHECKS for result in check(environment)]
    is_missing = any(result.severity is Severity.BROKEN for result in results)  # a wheel, which cannot load either
    run = run_steps("loading", (), environment, ends_at)
    results += [each for each in run.results if not (is_missing and each.severity is Severity.BROKEN)]
    if run.returncode is None:
        results.append(_cut_off(run))
    elif run.returncode and run.begun:
        results.append(fatal_loading(run.begun[-1], run.returncode, environment))
    elif run.returncode:
        reason = (run.stderr.strip().splitlines() or [end_words(run.returncode)])[-1]
        results.append(CheckResult("loading", Severity.BROKEN, f"Python cannot be started ({reason:.200}).", _REPORT))
    return results


def examine_package(folder: Path, environment: Environment, ends_at: float) -> list[CheckResult]:
    """Results for engines and of a package; only where `examine_machine` found nothing broken."""
    results: list[CheckResult] = []
    skipped: list[str] = []
    run = StepsOutcome()
    while time.monotonic() < ends_at:
        run = run_steps("engines", [str(folder), *skipped], environment, ends_at)
        results += run.results
        if run.returncode is None:
            return [*results, _cut_off(run)]
        if not run.returncode:
            return results
        if not run.begun:  # it would end again
            return [*results, _fatal("engines", run.returncode)]
        results.append(_fatal(run.begun[-1], run.returncode))
        skipped += run.begun
    return [*results, _cut_off(run)]


_REPORT = "Report it, with what `reader-edge doctor --json` prints."


def _fatal(step: str, returncode: int) -> CheckResult:
    found = f"Looking at this ended the process ({end_words(returncode)})."
    remedy = "Update the driver or the library behind it, or run without it (--provider cpu, --no-native)."
    return CheckResult(step, Severity.BROKEN, found, remedy)


def _cut_off(run: StepsOutcome) -> CheckResult:
    """Of time that was over."""
    left = [step for step in run.planned if step not in run.begun]
    found = "The examination took too long and was cut off here: the machine is busy, or the model is large"
    found += f". Not looked at: {', '.join(left)}." if left else "."
    remedy = "Run it again when the machine is quiet; `reader-edge bench cost MODEL` loads and measures a large model."
    return CheckResult(run.begun[-1] if run.begun else "loading", Severity.NOTE, found, remedy)

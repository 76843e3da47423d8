"""Result of one of `doctor`'s checks, and the process of its own that a step of checks runs in."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from reader_edge_runtime.doctor.environment import Environment


class Severity(StrEnum):
    """From the least to the worst. A note is worth knowing and costs nothing."""

    WELL = "well"
    NOTE = "note"
    SLOWER = "slower"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """check: what was examined. sentence: what was found. remedy: what to do about it; "" where all is well."""

    check: str
    severity: Severity
    sentence: str
    remedy: str = ""

    @classmethod
    def of_error(cls, check: str, severity: Severity, message: str) -> "CheckResult":
        """From a sentence as errors have them: what is wrong, a colon, the remedy."""
        found, _, remedy = message.strip().rpartition(": ")
        return cls(check, severity, f"{found}.", _sentence(remedy)) if found else cls(check, severity, message)


def verdict(results: Iterable[CheckResult]) -> Severity:
    """WELL, SLOWER or BROKEN, by the worst result."""
    worst = max((list(Severity).index(result.severity) for result in results), default=0)
    return Severity.WELL if worst <= 1 else list(Severity)[worst]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" if text[:1] not in ("'", "`") and not text.startswith("pip ") else text


@dataclass(slots=True)
class StepsOutcome:
    """What a process reported until it ended.

    planned, begun: names of the steps it meant to take, and of those it began, in their order. returncode: as
    `subprocess` has it; None where its time was over. stderr: what it wrote besides.
    """

    results: list[CheckResult] = field(default_factory=list)
    planned: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    returncode: int | None = 0
    stderr: str = ""


def run_steps(module: str, arguments: Iterable[str], environment: Environment, ends_at: float) -> StepsOutcome:
    """Run a module of this folder until it ends, or until `ends_at` of `time.monotonic`."""
    path = os.pathsep.join(environment.search_path)
    environ = {**environment.environ, "PYTHONPATH": path, "ORT_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-P", "-m", f"{__package__}.{module}", *arguments]
    run = StepsOutcome()
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(0.1, ends_at - time.monotonic()),
            check=False,
        )
        run.returncode, stdout, stderr = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        run.returncode, stdout, stderr = None, late.stdout or b"", late.stderr or b""
    except OSError as error:  # a Python within another program, which cannot be started alone
        run.returncode, stdout, stderr = 1, b"", str(error.strerror).encode()
    run.stderr = stderr.decode(errors="replace")
    for line in stdout.decode(errors="replace").splitlines():
        _note(line, run)
    return run


def report_plan(names: Iterable[str]) -> None:
    """Say, in the process of the steps, which there are."""
    _report({"plan": ", ".join(names)})


def report_step(name: str) -> None:
    """Say, in the process of the steps, that one begins."""
    _report({"step": name})


def report_result(result: CheckResult) -> None:
    _report({"check": result.check, "severity": result.severity, "found": result.sentence, "remedy": result.remedy})


def _report(fields: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _note(line: str, run: StepsOutcome) -> None:
    """Take a line as one of ours; what libraries print there is passed over."""
    try:
        fields = json.loads(line)
        if set(fields) == {"plan"}:
            run.planned = str(fields["plan"]).split(", ")
        elif set(fields) == {"step"}:
            run.begun.append(str(fields["step"]))
        elif set(fields) == {"check", "severity", "found", "remedy"}:
            severity = Severity(fields["severity"])
            run.results.append(CheckResult(fields["check"], severity, fields["found"], fields["remedy"]))
    except (ValueError, TypeError, RecursionError):
        return

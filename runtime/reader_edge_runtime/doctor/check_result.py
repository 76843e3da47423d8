"""What an examination finds: one sentence, and one thing to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


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

"""What is replayed, as the command line says it. Imports nothing heavy: help must be instant."""

from dataclasses import dataclass
from pathlib import Path

_DATASTORE = "datastore="


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Recordings, and what the drafter knows.

    tokenizer: None takes the model's own. sources: "context", and behind it "history", "logits" and up to four
    "datastore=FILE".
    priors: what the drafter starts from: "shipped", "others" (learned from the other files) or "none".
    """

    files: tuple[Path, ...]
    tokenizer: str | None
    sources: tuple[str, ...]
    priors: str

    @property
    def is_history_used(self) -> bool:
        return "history" in self.sources

    @property
    def is_logits_used(self) -> bool:
        return "logits" in self.sources

    @property
    def datastores(self) -> tuple[str, ...]:
        """The files of its datastores."""
        return tuple(filter(None, map(datastore_path, self.sources)))


def datastore_path(source: str) -> str:
    """FILE of datastore=FILE, else empty."""
    return source.removeprefix(_DATASTORE) if source.startswith(_DATASTORE) else ""

"""The log of a command that runs for long, on standard error: lines for eyes, or an object of JSON a line."""

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

# All that may end a line, move a cursor or turn the order of what stands behind it: names may come from strangers.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARGIN = "    "  # before lines of a trace, so that none looks like one of the log


class LineFormatter(logging.Formatter):
    """The moment, the level and the message, which stays on its line; a trace below."""

    def format(self, record: logging.LogRecord) -> str:
        trace = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        head = f"{_moment(record)} {record.levelname} {_spelt(record.getMessage())}"
        return "\n".join([head, *(f"{_MARGIN}{_spelt(line)}" for line in trace)])


class JsonFormatter(logging.Formatter):
    """An object a line: `time`, `level`, `logger`, and the fields of a record that has some, else its `message`."""

    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _moment(record), "level": record.levelname.lower(), "logger": record.name}
        fields = getattr(record, "fields", None) or {"message": record.getMessage()}
        trace = {"exception": self.formatException(record.exc_info)} if record.exc_info else {}
        return json.dumps(head | fields | trace)


class _StderrHandler(logging.Handler):
    """Writes where standard error is at the moment: a bar that is drawn there stands in its way."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()


@contextmanager
def log_to_stderr(level: str, log_format: str) -> Iterator[None]:
    """Have the log on standard error meanwhile: that of reader-edge from a level on, warnings of libraries besides."""
    handler, root, own = _StderrHandler(), logging.getLogger(), logging.getLogger("reader_edge")
    handler.setFormatter(JsonFormatter() if log_format == "json" else LineFormatter())
    before = own.level
    handler.setLevel(level.upper())
    handler.addFilter(lambda record: record.name.startswith("reader_edge") or record.levelno >= logging.WARNING)
    root.addHandler(handler)
    own.setLevel(level.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        own.setLevel(before)


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _spelt(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)

"""Fields of requests that change no answer: those that a class ignores, and those that nobody here knows."""

import json
import logging
import re
from typing import Literal

from prometheus_client import CollectorRegistry, Counter

# Which fields a server refuses although it could do without them: unknown ones, or all that have no effect.
RefusedFields = Literal["none", "unknown", "all"]
IGNORED_HEADER = "X-Ignored-Fields"

_MAX_NAMES, _MAX_CHARACTERS = 16, 64  # of what a header says of unknown fields
_MAX_NAMED = 100  # unknown fields that the log names
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")

_LOG = logging.getLogger(__name__)


class LeftOut:
    """What was taken out of one body. ignored: names of ignored fields. unknown: the first unknown names, cut, and of
    what they are: fields, or types of items."""

    def __init__(self, refused: RefusedFields = "none") -> None:
        self.refused = refused
        self.ignored: dict[str, None] = {}
        self.unknown: dict[str, str] = {}

    def take(self, name: str, is_ignored: bool) -> bool:
        """Note a field that has no effect. Returns whether it is to be taken out, and not refused where it stands."""
        if is_ignored:
            self.ignored[name] = None
        elif self.refused == "none":
            self._take_unknown(name, "field")
        return is_ignored or self.refused == "none"

    def take_items(self, items: list[object], known: frozenset[object], ignored: frozenset[str] | None) -> None:
        """Take out the items of other types than the known ones. ignored: which of them; None for any."""

        def stays(item: object) -> bool:
            tag = item.get("type") if isinstance(item, dict) else None
            if not isinstance(tag, str) or tag in known or self.refused != "none":
                return True
            if ignored is None:
                self._take_unknown(tag, "tool of type")
            return ignored is not None and tag not in ignored

        items[:] = [item for item in items if stays(item)]

    def _take_unknown(self, name: str, kind: str) -> None:
        if len(self.unknown) < _MAX_NAMES:
            self.unknown[name[:_MAX_CHARACTERS]] = kind

    @property
    def headers(self) -> dict[str, str]:
        """What tells the client, as a JSON list in ASCII."""
        names = [*self.ignored, *self.unknown]
        return {IGNORED_HEADER: json.dumps(names)} if names else {}


class IgnoredFields:
    """Counts them for Prometheus, the unknown ones together, and has the log name each unknown one once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "reader_edge_ignored_fields", "Requests with a field that has no effect.", ["name"], registry=registry
        )
        self._named: set[str] = set()

    def count(self, left_out: LeftOut) -> None:
        """Count those of one request."""
        for name in (*left_out.ignored, *(["other"] if left_out.unknown else ())):
            self._requests.labels(name).inc()
        for name, kind in left_out.unknown.items():  # one that may be anything is not written down
            is_new = name not in self._named and len(self._named) < _MAX_NAMED
            if is_new and _PLAIN_NAME.fullmatch(name):
                self._named.add(name)
                _LOG.warning("Requests have a %s '%s', which is unknown here: it is ignored.", kind, name)

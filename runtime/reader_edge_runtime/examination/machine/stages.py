"""Whether the other boxes of a model can be reached."""

import socket
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from reader_edge_runtime.examination.finding import Finding, Severity

_PATIENCE_S = 3.0


def check_stages(addresses: Sequence[str]) -> Iterator[Finding]:
    """addresses: of each stage, with spaces between its boxes, of which one is enough."""
    for number, boxes in enumerate(addresses, 1):
        reasons = list(filter(None, map(_obstacle, boxes.split(" "))))
        if len(reasons) == len(boxes.split(" ")):
            found = f"Stage {number} cannot be reached at {', '.join(boxes.split(' '))} ({reasons[0]})."
            remedy = "Start it there with `reader-edge stage`, or correct its address in pipeline.json."
            yield Finding(f"stage {number}", Severity.BROKEN, found, remedy)
        else:
            yield Finding(f"stage {number}", Severity.WELL, f"Stage {number} listens.")


def _obstacle(address: str) -> str | None:
    """Why nothing listens at tcp://HOST:PORT; None where something does."""
    where = urlsplit(address)
    try:
        socket.create_connection((where.hostname, where.port), _PATIENCE_S).close()
    except (OSError, UnicodeError) as error:
        return str(error)
    return None

"""Requests of clients as files under tests/data/clients: without personal details, their long texts cut."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

FOLDER = ROOT / "tests" / "data" / "clients"
HOME = "/home/user"
_WHOLE = 4_000  # characters of a body that is kept as it is
_TEXT, _DESCRIPTION = 300, 60  # characters of longer ones that are left of a text
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{24,}\b")

Json = dict[str, Any]


def save(name: str, version: str, requests: Sequence[Json], work: Path) -> None:
    """Write what a client sent from a folder: bodies by their paths, and what they share once."""
    kept = [(each["path"], _trimmed(each["body"], work)) for each in requests if each["method"] == "POST"]
    by_path: dict[str, list[Json]] = {}
    for path, body in kept:
        by_path.setdefault(path, []).append(body)
    shared = {path: _shared(bodies) for path, bodies in by_path.items()}
    own = [{"path": path, "body": {k: v for k, v in body.items() if k not in shared[path]}} for path, body in kept]
    file = {"client": name, "version": version, "shared": shared, "requests": own}
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(file, indent=1, ensure_ascii=False) + "\n", "utf-8")


def load(name: str) -> list[tuple[str, Json]]:
    """Paths and bodies of a client's requests, in their order."""
    file = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return [(each["path"], file["shared"][each["path"]] | each["body"]) for each in file["requests"]]


def _shared(bodies: Sequence[Json]) -> Json:
    """The fields that all bodies have alike."""
    first = bodies[0]
    return {key: first[key] for key in first if all(each.get(key) == first[key] for each in bodies)}


def _trimmed(body: Json, work: Path) -> Json:
    text = json.dumps(body).replace(str(work), HOME)
    text = _ID.sub(lambda match: re.sub(r"[0-9a-f]", "0", match[0]), text)
    values: Json = json.loads(text)
    return values if len(text) <= _WHOLE else _cut(values, "")


def _cut(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _cut(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [_cut(each, name) for each in value]
    most = _DESCRIPTION if name == "description" else _TEXT
    is_kept = not isinstance(value, str) or len(value) <= most or "greeting.txt" in value
    return value if is_kept else f"{value[:most]}..."

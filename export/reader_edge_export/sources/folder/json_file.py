"""JSON files of a folder in Hugging Face format: never more of one than such a file may have."""

import json
from pathlib import Path
from typing import Any

from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.untrusted.plain_file import check_plain_file

_MAX_JSON_BYTES = 1 << 24


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ExportError."""
    if not path.exists() and not path.is_symlink():
        raise ExportError(f"'{path.parent}' holds no {path.name}: give a folder in Hugging Face format.")
    check_plain_file(path, ExportError, "fetch the model again")
    num_bytes = path.stat().st_size
    if num_bytes > _MAX_JSON_BYTES:
        raise ExportError(f"'{path}' has {num_bytes} bytes, more than it may have: fetch the model again.")
    try:
        fields = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ExportError(f"'{path}' is not valid JSON ({error}): fetch the model again.") from None
    if not isinstance(fields, dict):
        raise ExportError(f"'{path}' holds no JSON object: fetch the model again.")
    return fields

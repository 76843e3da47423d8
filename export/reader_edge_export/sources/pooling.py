"""What a folder's model is made for besides answers, as sentence-transformers writes it: `Manifest.pooling`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reader_edge_export.sources.folder.folder_files import read_json
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.untrusted.plain_file import check_plain_file

POOLING_FILE = "1_Pooling/config.json"
_MODULES_FILE, _MAX_BYTES = "modules.json", 1 << 20
# Behind the model itself; others, such as Dense, change what comes of it.
_POOLED, _NORMALISED, _SCORED = "Pooling", "Normalize", "LogitScore"


def folder_pooling(folder: Path, config: Mapping[str, Any]) -> str:
    """What `Manifest` has: "last" where an embedding is the last token's state, "rank" of a reranker, else "".

    Raises ExportError.
    """
    modules = _modules(folder)
    if _SCORED in modules and config.get("model_type") == "qwen3":
        return "rank"
    path = folder / POOLING_FILE
    if not path.exists() or set(modules[1:]) - {_POOLED, _NORMALISED}:
        return ""
    pooling = read_json(path)
    modes = [name for name, is_on in pooling.items() if name.startswith("pooling_mode_") and is_on is True]
    is_last = modes == ["pooling_mode_lasttoken"] or (not modes and pooling.get("pooling_mode") == "lasttoken")
    return "last" if is_last else ""


def _modules(folder: Path) -> list[str]:
    """The classes of a pipeline, the model's first; [] where a folder is none."""
    path = folder / _MODULES_FILE
    if not path.exists():
        return []
    check_plain_file(path, ExportError, "fetch the model again")
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError
        return [str(module["type"]).rpartition(".")[2] for module in json.loads(path.read_bytes())]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise ExportError(f"'{path}' is no list of modules: fetch the model again.") from None

"""The cache of huggingface_hub, which many programs share: models that others fetched, found by their ids.

models--OWNER--NAME/
    refs/main                   the commit that was fetched last
    snapshots/COMMIT/           its files: links to others of the cache, or the files themselves
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from reader_edge.models.catalogue import Origin
from reader_edge_export.sources.find import part_names
from reader_edge_export.sources.folder.folder_files import shard_of_tensors
from reader_edge_export.sources.folder.hugging_face import OTHER_TOKENIZERS
from reader_edge_runtime.errors import CatalogueError
from reader_edge_runtime.package.manifest import MANIFEST_NAME

_COMMIT = re.compile(rb"[0-9a-f]{40}")
_FURTHER_FOLDER = "additional_chat_templates"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """What the cache holds of a model.

    path: its snapshot's folder, or the one file that is wanted, the first of its parts. lacking: a file that is not
    there, None of a whole one.
    """

    path: Path
    lacking: str | None = None


def hub_cache() -> Path:
    """Where the cache is, as huggingface_hub itself looks for it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if place := os.environ.get(variable):
            return _expanded(place)
    if home := os.environ.get("HF_HOME"):
        return _expanded(home) / "hub"
    return _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def find_cached(origin: Origin) -> CachedModel | None:
    """What the cache holds of a model; None where nothing.

    Raises CatalogueError for links that lead out of the cache, and for a snapshot that is named in another way;
    ExportError for an index of weights that cannot be.
    """
    cache = hub_cache()
    snapshot = _snapshot(cache, cache / f"models--{origin.hub_id.replace('/', '--')}")
    if snapshot is None:
        return None
    wanted = snapshot / (origin.file or "config.json")
    for path in (snapshot, *snapshot.iterdir(), *(snapshot / _FURTHER_FOLDER).glob("*"), *wanted.parent.glob("*")):
        _check_inside(path, cache)
    if origin.file is not None:
        parts = [wanted.with_name(name) for name in part_names(wanted.name)]
        lacking = next((part for part in parts if not part.is_file()), None)
        return CachedModel(wanted, None if lacking is None else lacking.relative_to(snapshot).as_posix())
    _check_kind(snapshot, origin.hub_id)
    return CachedModel(snapshot, _lacking(snapshot))


def absence_sentence(origin: Origin, cached: CachedModel | None) -> str:
    """Where a model was looked for that cannot be fetched, in a sentence."""
    if cached is None:
        return f"Nor is it in the Hugging Face cache '{hub_cache()}'."
    folder = cached.path.parents[origin.file.count("/")] if origin.file else cached.path
    wanted = f"{origin.hub_id} {cached.lacking}" if origin.file else origin.hub_id
    return (
        f"The Hugging Face cache holds it in part: '{folder}' lacks {cached.lacking}, "
        f"which `hf download {wanted}` brings."
    )


def _expanded(place: str) -> Path:
    return Path(os.path.expandvars(place)).expanduser()


def _snapshot(cache: Path, model: Path) -> Path | None:
    """The folder of the commit that was fetched last; without a note of it, of the only one."""
    note = model / "refs" / "main"
    if note.is_file():
        _check_inside(note, cache)
        with note.open("rb") as file:
            commit = file.read(64).strip()
        if not _COMMIT.fullmatch(commit):
            raise CatalogueError(f"'{note}' names no commit: remove it, and fetch the model again.")
        snapshot = model / "snapshots" / commit.decode()
        return snapshot if snapshot.is_dir() else None
    snapshots = sorted(path for path in model.glob("snapshots/*") if path.is_dir())
    if len(snapshots) > 1:
        raise CatalogueError(
            f"The Hugging Face cache holds {len(snapshots)} revisions of the model and no {note}: "
            f"give one of them by its path, such as '{snapshots[-1]}'."
        )
    return next(iter(snapshots), None)


def _check_inside(path: Path, cache: Path) -> None:
    found = os.path.realpath(path)
    if not Path(found).is_relative_to(os.path.realpath(cache)):
        raise CatalogueError(
            f"'{path}' leads to '{found}', out of the Hugging Face cache '{cache}': if you trust it, give the model's "
            "folder by its path."
        )


def _check_kind(snapshot: Path, hub_id: str) -> None:
    """Refuse what is no folder in Hugging Face format, and is to be named in another way."""
    if (snapshot / MANIFEST_NAME).exists():
        raise CatalogueError(f"'{hub_id}' is a package already: give its folder '{snapshot}'.")
    files = sorted(path.name for path in snapshot.glob("*.gguf"))
    if files and not (snapshot / "config.json").exists():
        raise CatalogueError(
            f"The Hugging Face cache holds '{hub_id}' as GGUF files ({', '.join(files[:5])}): name one of them, "
            f"as {hub_id}/{files[0]}."
        )


def _lacking(snapshot: Path) -> str | None:
    """The first file without which the model is not whole."""
    stored = sorted(path.name for pattern in ("*.safetensors", "*.bin") for path in snapshot.glob(pattern))
    weights = sorted(set(shard_of_tensors(snapshot).values())) or stored or ["model.safetensors"]
    has_other = any((snapshot / name).exists() for name in OTHER_TOKENIZERS)
    tokenizer = [] if has_other else ["tokenizer.json"]
    return next((name for name in ("config.json", *weights, *tokenizer) if not (snapshot / name).is_file()), None)

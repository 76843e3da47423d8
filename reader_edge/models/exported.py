"""Exports a model once, into the user's cache."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from reader_edge.models.store import StoredModel
from reader_edge.terminal.console import work_progress
from reader_edge.terminal.formatting import readable_time, visible
from reader_edge_export.options import AUTO, ExportOptions
from reader_edge_export.sources.find import gguf_files, mmproj_files
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.package.manifest import MANIFEST_NAME
from reader_edge_runtime.package.manifest_file import FORMAT_VERSION
from reader_edge_runtime.untrusted.gguf_header import is_gguf

# On two cores, as docs/explanation/measured/exports.md has it.
_GGUF_S, _GGUF_S_A_GIGABYTE = 20, 12
_FOLDER_S, _FOLDER_S_A_GIGABYTE = 45, 100


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A folder or file that a model is exported from. name: in the catalogue or on the hub, None for any other.

    mmproj, takes_adapters: of `ExportOptions`.
    """

    path: Path
    name: str | None = None
    mmproj: Path | None = None
    takes_adapters: bool = False


def show_path(source: ModelSource) -> None:
    """Show where a model lies that was named and not given by its path."""
    if source.name is not None:
        click.echo(visible(f"'{source.name}' is read from '{source.path}'."), err=True)


def _stored_for(source: ModelSource) -> StoredModel:
    return StoredModel(source.name or str(source.path.resolve()))


def package_of(source: ModelSource) -> Path:
    """Where the package that a model is run as belongs."""
    kind = "gguf" if is_gguf(source.path) else "int8"  # a file itself says what it becomes
    kind += "-adapters" if source.takes_adapters else ""
    return _stored_for(source).package(kind, f"{FORMAT_VERSION} {_source_key(source)}")


def exported(source: ModelSource, check: str = AUTO) -> Path:
    """The package of a model, in the user's cache; one process exports it while others wait.

    check: of `ExportOptions`. A first answer does not wait for checks that take longer than the export.
    """
    from reader_edge_export.pipeline import export_model

    stored, out = _stored_for(source), package_of(source)
    if (out / MANIFEST_NAME).is_file():
        return out
    KernelLoader.shared()  # has the drafter compiled meanwhile, where it did not come compiled
    model = source.name or str(source.path)
    show_path(source)
    with work_progress(f"Exporting {model} (once)") as work, stored.locked():
        if (out / MANIFEST_NAME).is_file():  # another process has exported it meanwhile
            return out
        begun = [f"Exporting {visible(model)} takes about {readable_time(_export_seconds(source.path))}, once."]

        def on_phase(phase: str) -> None:
            while begun:  # not where nothing can be exported here
                work.on_message(begun.pop())
            work.on_phase(phase)

        options = ExportOptions(check=check, mmproj=source.mmproj, takes_adapters=source.takes_adapters)
        report = export_model(
            source.path,
            out,
            options,
            on_phase=on_phase,
            name=source.name,
            on_message=work.on_message,
            on_share=work.on_progress,
        )
        stored.remove_outdated(out)
        if report.warning is not None:
            click.echo(f"Warning: {report.warning}", err=True)
    if check == AUTO:
        quoted = visible(shlex.quote(model))
        click.echo(f"`reader-edge tune {quoted}` measures its quality, and lets it draft better.", err=True)
    return out


def _export_seconds(path: Path) -> float:
    """How long an export takes on two cores, at a rough guess by the size of the weights."""
    if is_gguf(path):
        return _GGUF_S + _GGUF_S_A_GIGABYTE * sum(part.stat().st_size for part in gguf_files(path)) / 1e9
    weights = sum(file.stat().st_size for suffix in ("safetensors", "bin") for file in path.glob(f"*.{suffix}"))
    return _FOLDER_S + _FOLDER_S_A_GIGABYTE * weights / 1e9


def _source_key(source: ModelSource) -> str:
    """Changes when a file of the model does. Sizes and times: reading all weights at every start would take seconds."""
    path = source.path
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file())
    else:
        files = [*gguf_files(path), *(mmproj_files(path) if source.mmproj is None else [source.mmproj.resolve()])]
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return f"{path.resolve()} {stats}"

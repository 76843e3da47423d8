"""tune_package(): measures a package's quality and its likely successors afterwards, where its export left them out.

Nothing heavy is imported before it is clear that there is a package to tune.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from reader_edge_export.checks.quality_limits import quality_warning
from reader_edge_export.libraries import check_installation, quiet_libraries
from reader_edge_export.package.package_folder import is_disk_full
from reader_edge_export.package.successors import about_num_parameters
from reader_edge_export.progress import OnPhase, OnShare, Progress
from reader_edge_export.sources.find import check_kind, find_source
from reader_edge_export.sources.source import Source
from reader_edge_runtime.atomic_file import check_writable, clear_leftovers, temporary_name, write_failure
from reader_edge_runtime.drafting.sources.successor_store import SuccessorTable, max_table_bytes
from reader_edge_runtime.errors import ExportError, PackageError
from reader_edge_runtime.machine.path_lock import PathLock
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME, Manifest, file_entry
from reader_edge_runtime.package.manifest_file import write_manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from reader_edge_export.sources.source_model import SourceModel

_SLOWDOWN = 10  # nobody waits for a first answer
_LONGEST_TEXT = 1 << 20  # tokens
_AGAIN, _ELSEWHERE = "tune it again", "copy the package to a folder that can be written"


@dataclass(frozen=True, slots=True)
class TuningReport:
    """manifest: of the tuned package. num_table_tokens: how many tokens it has the likely successors of.

    phase_seconds, warning: as in an `ExportReport`.
    """

    manifest: Manifest
    num_table_tokens: int
    phase_seconds: Mapping[str, float]
    warning: str | None


def tune_package(
    folder: Path, source: Path | None, on_phase: OnPhase | None = None, on_share: OnShare | None = None
) -> TuningReport:
    """Measure a package against what it was exported from, and make its table of likely successors.

    source: None measures nothing. A table that is there stays, and so do all other files; the manifest is replaced at
    the end. So who uses the package meanwhile goes on, and where anything fails, the package is what it was. One at a
    time may tune a package. on_phase, on_share: of `Progress`.
    Raises InstallationError, PackageError, ExportError (or a child), TokenizerError.
    """
    package = ModelPackage.open(folder)
    if source is not None:
        check_kind(source)
    check_installation(purpose="Tuning")
    progress = Progress(on_phase, on_share)
    try:
        with quiet_libraries(), _work_folder(package) as work_folder:
            manifest, table = _tuned(package, source, work_folder, progress)
    except Exception as error:
        if is_disk_full(error):
            raise ExportError(f"The disk of '{folder}' is full: free some space and tune it again.") from error
        raise
    warning = quality_warning(manifest.precision, manifest.checks)
    return TuningReport(manifest, len(table), progress.seconds, warning)


def _tuned(
    package: ModelPackage, source: Path | None, work_folder: Path, progress: Progress
) -> tuple[Manifest, SuccessorTable]:
    from reader_edge_export.checks.chat_check import check_chats
    from reader_edge_export.checks.package_check import PackageCheck

    with progress.enter("checking the package"):
        package.check_files(progress.update)
        longer = replace(package.manifest, max_context=_LONGEST_TEXT)  # texts beyond its context are cut
        text = Tokenizer.open(ModelPackage(package.folder, longer))
        table = SuccessorTable.of_package(package, text.fingerprint())
    check = PackageCheck(package, text, work_folder, progress)
    checks, files = dict(package.manifest.checks), dict(package.manifest.files)
    num_parameters = about_num_parameters(package.manifest)
    if source is not None:
        found, model = _opened(package, source, progress)
        num_parameters = model.num_parameters
        with progress.enter("comparing conversations"):
            tokenizer = found.load_tokenizer(package.manifest.vocab_size)
            checks |= check_chats(tokenizer, text).figures()
        checks |= check.quality(found, model)
    if table is None:
        path = package.folder / SUCCESSORS_NAME
        table = check.successors(num_parameters, _SLOWDOWN)
        table.write(path, text.fingerprint())
        files[SUCCESSORS_NAME] = file_entry(path)
    manifest = replace(package.manifest, checks=checks, files=files)
    write_manifest(package.folder, manifest)
    return manifest, table


def _opened(package: ModelPackage, source: Path, progress: Progress) -> "tuple[Source, SourceModel]":
    """What a package was exported from. Raises ExportError where it was exported from something else."""
    with progress.enter("reading the source"):
        found = find_source(source, package.manifest.max_context)
        if found.fingerprint() != package.manifest.source_fingerprint:
            raise ExportError(
                f"'{package.folder}' was not exported from '{source}', or that has changed since: give its own source "
                f"('{package.manifest.source_name}'), or export again."
            )
        return found, found.open_model()


@contextmanager
def _work_folder(package: ModelPackage) -> Iterator[Path]:
    """A folder in a package's folder, gone in the end. Raises PackageError where no table could be written."""
    path, place = package.folder / SUCCESSORS_NAME, package.folder / "tuning"
    try:
        check_writable(path, max_table_bytes(package.manifest))
        clear_leftovers(place)
        work_folder = temporary_name(place)
        lock = PathLock.new_folder(work_folder)
    except OSError as error:
        raise PackageError(write_failure(path, error, _AGAIN, _ELSEWHERE)) from error
    try:
        yield work_folder
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)
        lock.release()

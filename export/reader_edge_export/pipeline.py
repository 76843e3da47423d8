"""export_model(): load -> trace -> lower -> store -> check -> one package, or none.

Nothing heavy is imported before the source and the target have been checked.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from reader_edge_export.checks.quality_limits import quality_warning, speculator_warning
from reader_edge_export.libraries import check_installation, quiet_libraries
from reader_edge_export.options import IREE, ExportOptions, ExportReport
from reader_edge_export.package.package_folder import check_target, new_package
from reader_edge_export.package.source_files import export_key, readable, unchanged
from reader_edge_export.progress import OnPhase, OnShare, Progress
from reader_edge_export.sources.adapters.adapter import check_form, find_adapter
from reader_edge_export.sources.architectures import check_options
from reader_edge_export.sources.find import check_kind, find_source
from reader_edge_export.sources.image_part import find_images, sees_images, without_modules
from reader_edge_export.sources.source import Source
from reader_edge_export.speculators.formats.find import AUTO, find_speculator
from reader_edge_export.speculators.formats.folders import SpeculatorFiles
from reader_edge_export.texts.text_set import TextSet
from reader_edge_runtime.adapters.adapter import Adapter
from reader_edge_runtime.errors import InstallationError
from reader_edge_runtime.execution.iree.wheel import compiler_obstacle


def export_model(
    source: str | Path,
    out: str | Path,
    options: ExportOptions | None = None,
    on_phase: OnPhase | None = None,
    name: str | None = None,
    on_message: Callable[[str], None] = lambda line: None,
    on_share: OnShare | None = None,
) -> ExportReport:
    """Export a decoder, a Hugging Face folder or a GGUF file, to a model package at `out`.

    on_phase: called with a short description when a phase begins. on_share: called with what is done of the phase and
    how much it is in all, in a unit of the phase's own. name: what the package calls its source; None for the source's
    own name. on_message: gets lines that should stay. A failure of any kind leaves nothing behind, and an existing
    package as it was; where the process is killed, the next export like it resumes with the matrices that were rounded.
    Raises InstallationError, ExportError (or a child), TokenizerError.
    """
    options = options or ExportOptions()
    folder = Path(os.path.abspath(out))  # also gives "." a name
    with readable(source):
        check_kind(source)  # what is wrong with the source is reported before what is missing here
    check_installation()
    obstacle = compiler_obstacle() if options.engine == IREE else None
    if obstacle is not None:
        raise InstallationError(obstacle)
    check_target(folder, options.force)
    progress = Progress(on_phase, on_share)
    with quiet_libraries():
        with progress.enter("checking the source"), readable(source):
            found = find_source(source, options.max_context)
            found = replace(found, name=name) if name else found
            adapter = _adapter(options, found)
            precision = options.precision_for(found.is_kept and adapter is None)
            options = replace(options, precision=precision, check=options.check_for(precision))
            check_options(found.config, options.precision, options.attention)
            if options.takes_adapters:
                check_form(found, are_in_files=False)
            if options.precision == "keep":
                found.check_keepable()
            path = options.calibration_text
            calibration = TextSet.bundled("calibration") if path is None else TextSet.read(path)
            images = find_images(found, on_message, options.mmproj) if options.can_see else None
            if options.has_images and not options.can_see and sees_images(found):
                on_message(
                    f"'{found.short_name}' sees images, which takes exact attention on a CPU: with attention "
                    f"{options.attention!r} in {options.precision} the package will read texts alone."
                )
            speculator = _speculator(options, found)
            parts = (speculator, images, adapter)
            own_files = [file for part in parts if part is not None for file in part.files]
            key = export_key(found, options, calibration, own_files)
        with new_package(folder, options.force, key) as partial, unchanged([*found.files, *own_files]):
            with progress.enter("loading PyTorch"):
                from reader_edge_export.package_export import PackageExport

            export = PackageExport(
                found, options, calibration, partial, progress, key, on_message, speculator, images, adapter
            )
            manifest = export.run()
    return ExportReport(
        Path(out),
        manifest.num_bytes,
        options.precision,
        options.attention,
        manifest.checks,
        progress.seconds,
        quality_warning(options.precision, manifest.checks),
        found.weight_types,
        manifest.kept_types,
        export.other_types,
        export.chats.adapted,
        export.chats.different,
        export.chats.repaired,
        without_modules(found.left_out, images),
        speculator_warning(manifest.checks),
        export.ends,
        manifest.sampling,
        found.other_choices(),
        None if adapter is None else (adapter.short_name, export.num_merged),
    )


def _adapter(options: ExportOptions, source: Source) -> Adapter | None:
    """The one that is to be merged."""
    if options.adapter is None:
        return None
    with readable(options.adapter):
        return find_adapter(Path(options.adapter), source)


def _speculator(options: ExportOptions, target: Source) -> SpeculatorFiles | None:
    """The trained speculator that is to come along."""
    if options.speculator is None:
        return None
    with readable(target.name if options.speculator == AUTO else options.speculator):
        return find_speculator(options.speculator, target)

"""export_model(): load -> trace -> lower -> store -> check -> one package, or none.

Nothing heavy is imported before the source and the target have been checked.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from importlib import resources, util
from pathlib import Path

from reader_edge_export.options import ExportOptions, ExportReport
from reader_edge_export.package_folder import check_target, new_package
from reader_edge_export.quiet import quiet_libraries
from reader_edge_export.sources.hugging_face import find_source
from reader_edge_export.stages import Stages
from reader_edge_runtime.errors import ExportError, InstallationError

_NEEDED = ("torch", "transformers", "optimum.exporters.onnx", "onnx", "onnx_ir", "onnxruntime")


def export_model(
    source: str | Path,
    out: str | Path,
    options: ExportOptions | None = None,
    on_stage: Callable[[str], None] | None = None,
    name: str | None = None,
) -> ExportReport:
    """Export a Hugging Face decoder, a folder, to a model package at `out`.

    on_stage: called with a short description when a stage begins. name: what the package calls its source; None for the
    source's own name. A failure of any kind leaves nothing behind, and an existing package as it was.
    Raises InstallationError, ExportError (or a child), TokenizerError.
    """
    options = options or ExportOptions()
    folder = Path(os.path.abspath(out))  # also gives "." a name
    check_installation()
    check_target(folder, options.force)
    stages = Stages(on_stage)
    with quiet_libraries():
        with stages.enter("checking the source"):
            found = find_source(source, options.max_context)
            found = replace(found, name=name) if name else found
            text = _calibration_text(options.calibration_text)
        with new_package(folder, options.force) as partial:
            from reader_edge_export.package_export import PackageExport

            manifest = PackageExport(found, options, text, partial, stages).run()
    num_bytes = sum(entry.num_bytes for entry in manifest.files.values())
    return ExportReport(Path(out), num_bytes, options.precision, options.attention, manifest.checks, stages.seconds)


def _calibration_text(path: Path | None) -> str:
    """The text that the cost of rounding is measured on: the user's, or the bundled one. Raises ExportError."""
    if path is None:
        return resources.files("reader_edge_export").joinpath("calibration.txt").read_text(encoding="utf-8")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"The calibration text '{path}' cannot be read: {error}.") from error
    if not text.strip():
        raise ExportError(f"The calibration text '{path}' is empty: give some paragraphs of plain text.")
    return text


def check_installation() -> None:
    """Raise InstallationError unless the packages of the extra "export" are here."""
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        raise InstallationError(f"Exporting needs {missing[0]}, which is missing: pip install 'reader-edge[export]'.")


def _is_installed(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False

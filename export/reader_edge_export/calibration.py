"""The text that the cost of rounding is measured on."""

from importlib import resources
from pathlib import Path

from reader_edge_runtime.errors import ExportError


def calibration_text(path: Path | None) -> str:
    """The text to measure on: the user's, or the bundled one. Raises ExportError."""
    if path is None:
        return resources.files("reader_edge_export").joinpath("calibration.txt").read_text(encoding="utf-8")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"The calibration text '{path}' cannot be read: {error}.") from error
    if not text.strip():
        raise ExportError(f"The calibration text '{path}' is empty: give some paragraphs of plain text.")
    return text

"""The bundled forecasting model, and a table to try it on."""

from pathlib import Path

from reader_edge_runtime.errors import PackageError
from reader_edge_series.series_manifest import SERIES_MANIFEST_NAME


def bundled_forecaster() -> Path:
    """Its package: inside an installed wheel, or in the source tree."""
    return _folder() / "package"


def bundled_table() -> Path:
    """Hourly electricity of four weeks."""
    return _folder() / "electricity.csv"


def _folder() -> Path:
    here = Path(__file__).resolve().parents[1]
    places = (here / "bundled", here.parents[1] / "models" / "series")
    found = next((place for place in places if (place / "package" / SERIES_MANIFEST_NAME).is_file()), None)
    if found is None:
        raise PackageError("This installation has no forecasting model: name one, or install reader-edge again.")
    return found

"""Plots, drawn with matplotlib, which is an optional dependency, and written whole or not at all."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from reader_edge_runtime.atomic_file import new_file
from reader_edge_runtime.errors import ConfigError, InstallationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")


def check_plot(path: Path | None) -> None:
    """Check before the work that a plot can be written. Raises ConfigError or InstallationError."""
    if path is None:
        return
    if path.suffix not in FORMATS:
        raise ConfigError(f"'{path}' names no kind of plot: end it in {', '.join(FORMATS)}.")
    if not path.parent.is_dir():
        raise ConfigError(f"There is no folder '{path.parent}' for the plot: make it first.")
    if find_spec("matplotlib") is None:  # not imported yet: it would count as memory of what is measured
        raise InstallationError("Plots need matplotlib: pip install 'reader-edge[plot]'.")


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, `width` by `height` inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_plot(figure: "Figure", path: Path) -> None:
    """Write a figure in the format its name says; the same figure gives the same bytes."""
    import matplotlib

    undated: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.hashsalt": "reader-edge"}), new_file(path) as file:
        figure.savefig(file, format=path.suffix[1:], metadata=undated.get(path.suffix))

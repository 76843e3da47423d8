"""Plots, drawn with matplotlib, which is an optional dependency, and written whole or not at all."""

import re
from functools import cache
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
    if find_spec("matplotlib") is None:  # not imported yet: it would count as memory of what is measured
        raise InstallationError("Plots need matplotlib: pip install 'reader-edge[plot]'.")


def _find_fonts(figure: "Figure") -> None:
    """Have texts in other scripts drawn with fonts of this machine that have them; what none has becomes "…"."""
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.text import Text

    usual = _characters(findfont(FontProperties()))
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        missing = {each for each in text.get_text() if not each.isspace()} - usual
        if missing:
            families, left = _fonts_with(frozenset(missing))
            text.set_fontfamily([*text.get_fontfamily(), *families])
            if left:
                text.set_text(re.sub(f"[{re.escape(''.join(sorted(left)))}]+", "…", text.get_text()))


@cache
def _fonts_with(characters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Families that have as many of the characters as there are, and those that none has."""
    from matplotlib.font_manager import fontManager

    families, left = list[str](), set(characters)
    for font in fontManager.ttflist:
        if not left:
            break
        if found := left & _characters(font.fname):
            families.append(font.name)
            left -= found
    return tuple(families), frozenset(left)


@cache
def _characters(path: str) -> frozenset[str]:
    """Those that a font's file has; none of one that cannot be read."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(map(chr, get_font(path).get_charmap()))
    except (OSError, RuntimeError):  # removed since matplotlib made its list, or broken
        return frozenset()


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, `width` by `height` inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_plot(figure: "Figure", path: Path) -> None:
    """Write a figure in the format its name says; the same figure gives the same bytes."""
    import matplotlib

    _find_fonts(figure)
    undated: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.hashsalt": "reader-edge"}), new_file(path) as file:
        figure.savefig(file, format=path.suffix[1:], metadata=undated.get(path.suffix))

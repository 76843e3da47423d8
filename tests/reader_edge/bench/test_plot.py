"""Plots show texts in any script: with a font that has it, and never as question marks."""

from pathlib import Path

import matplotlib.font_manager
import pytest
from matplotlib.text import Text

from reader_edge.bench import plot
from reader_edge.bench.comparison_report import _label
from reader_edge.bench.plot import new_figure, save_plot

SCRIPTS = [
    "\u041f\u0440\u0438\u0432\u0435\u0442",
    "\u0394\u03b5\u03af\u03be\u03b5",
    "\u4f60\u597d world",
    "\u3053\u3093\u306b\u3061\u306f",
    "\u05e9\u05dc\u05d5\u05dd",
    "\U0001f600",
]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_plot_in_any_script_is_drawn(tmp_path: Path, suffix: str) -> None:
    figure = new_figure(6, 4)
    axes = figure.subplots()
    axes.barh(range(len(SCRIPTS)), range(len(SCRIPTS)))
    axes.set_yticks(range(len(SCRIPTS)), [_label(each) for each in SCRIPTS])
    save_plot(figure, tmp_path / f"plot{suffix}")  # a glyph that is missing would warn
    shown = [each.get_text() for each in axes.get_yticklabels()]
    assert not any("?" in each for each in shown)
    assert shown[:2] == SCRIPTS[:2]  # which matplotlib's own font has
    assert shown[2].endswith(" world")


def test_what_no_font_has_is_an_ellipsis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matplotlib.font_manager.fontManager, "ttflist", [])
    plot._fonts_with.cache_clear()
    figure = new_figure(3, 2)
    text = figure.text(0.5, 0.5, "\u4f60\u597d, world")
    save_plot(figure, tmp_path / "plot.png")
    plot._fonts_with.cache_clear()
    assert isinstance(text, Text)
    assert text.get_text() == "\u2026, world"

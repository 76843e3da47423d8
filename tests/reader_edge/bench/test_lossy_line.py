"""Where lossy ways lie beside the line of quality against rejections."""

import json
from pathlib import Path

import numpy as np
import pytest

from reader_edge.bench.frontier.lossy_line import LossyLine
from reader_edge.bench.plot import new_figure
from reader_edge_runtime.errors import UserFileError

EXACT = {"way": "exact", "tasks": 10, "right": 8, "tokens": 100, "decoded_tokens": 90, "steps": 45, "changed": 0}
RELAXED = EXACT | {"way": "relaxed", "right": 7, "steps": 36, "changed": 10}


def line_of(tmp_path: Path, text: str) -> LossyLine:
    path = tmp_path / "lossy.json"
    path.write_text(text, encoding="utf-8")
    return LossyLine.read(path)


def test_a_rejection_that_is_saved_is_a_token_that_is_changed(tmp_path: Path) -> None:
    line = line_of(tmp_path, json.dumps({"ways": [EXACT, RELAXED, EXACT | {"steps": 60}]}))
    exact, relaxed, slower = line.fields()
    assert (exact["rejected"], exact["changed"], exact["line"], exact["right"]) == (0.5, 0.0, 0.0, 0.8)
    assert (relaxed["rejected"], relaxed["changed"], relaxed["right"]) == (0.4, 0.1, 0.7)
    assert relaxed["line"] == pytest.approx(0.1)
    assert slower["line"] == 0.0
    assert [list(column.cells)[1] for column in line.table().columns] == ["relaxed", "40.00", "10.00", "10.00", "70.00"]


def test_a_byte_order_mark_before_it_is_no_part_of_it(tmp_path: Path) -> None:
    assert line_of(tmp_path, "\ufeff" + json.dumps({"ways": [EXACT]})).points


def test_the_line_and_its_ways_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots are an extra")
    axes = new_figure(5, 4).subplots()
    line_of(tmp_path, json.dumps({"ways": [EXACT, RELAXED]})).draw(axes)
    line, exact, relaxed = axes.get_lines()
    assert [each.get_label() for each in (line, exact, relaxed)] == ["line", "exact: 80% right", "relaxed: 70% right"]
    ends = [np.asarray(each.get_xydata())[-1].tolist() for each in (line, exact, relaxed)]
    assert ends == [pytest.approx([at, at]) for at in (10, 0, 10)]


def test_ways_of_one_rule_share_a_colour_and_names_are_no_formulas(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots are an extra")
    figure = new_figure(5, 4)
    axes = figure.subplots()
    names = ("judge:$\\x$:0.1", "judge:$\\x$:0.4", "big-little:2:0.3")
    line_of(tmp_path, json.dumps({"ways": [EXACT, *(RELAXED | {"way": name} for name in names)]})).draw(axes)
    _, _, first, second, other = axes.get_lines()
    assert first.get_color() == second.get_color() != other.get_color()
    assert first.get_marker() != second.get_marker()
    figure.draw_without_rendering()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"ways": []}',
        json.dumps({"ways": [RELAXED]}),
        json.dumps({"ways": [EXACT | {"way": 3}]}),
        json.dumps({"ways": [EXACT | {"steps": -1}]}),
        json.dumps({"ways": [EXACT | {"steps": 1.5}]}),
        json.dumps({"ways": [EXACT | {"tokens": 0}]}),
        json.dumps({"ways": [{"way": "exact"}]}),
        " " * ((1 << 22) + 1),
        "[" * 100_000,
    ],
    ids=range(11),
)
def test_what_no_bench_printed_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserFileError, match=r"'.*lossy\.json' is not what `lossy bench --json` prints"):
        line_of(tmp_path, text)


def test_a_file_that_is_gone_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(UserFileError, match=r"cannot be read: No such file"):
        LossyLine.read(tmp_path / "none")

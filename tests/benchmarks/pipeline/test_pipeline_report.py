"""The table of slow links: what steps should take, and by how much that is off; and its plot."""

from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="plots need it: pip install 'reader-edge[plot]'")

from benchmarks.pipeline.pass_parts import PassParts
from benchmarks.pipeline.report import Row, write_report


def test_steps_stand_beside_stages_links_and_fixed_costs(tmp_path: Path) -> None:
    parts = [PassParts(2, 5.0, stages_ms=4.0, ring_ms=6.0, rested_ms=7.0, frame_bytes=32, stream_bytes=2304)]
    rows = [
        Row(1, 0.0, "plain", 1, 200.0, 1.0, 1.0, 5.0, True),
        Row(1, 0.0, "one pass", 1, 240.0, 1.5, 4.0, 6.0, True),
        Row(2, 0.0, "plain", 1, 160.0, 1.0, 1.0, 6.25, True),
        Row(2, 0.0, "one pass", 1, 192.0, 2.0, 4.0, 8.0, True),
        Row(2, 5.0, "plain", 1, 50.0, 1.0, 1.0, 20.0, True),
        Row(2, 5.0, "one pass", 1, 100.0, 2.0, 4.0, 21.0, False),
        Row(2, 5.0, "two passes", 1, 110.0, 2.5, 9.0, 23.0, True),
    ]
    write_report(rows, parts, [], tmp_path / "page")
    lines = (tmp_path / "page.md").read_text().splitlines()
    assert lines[2] == "| 1 | 0 | plain | 200.0 | 1.00 | 1.0 | 5.0 | 5.0 |  |  |  |  | yes |"
    assert lines[4] == "| 2 | 0 | plain | 160.0 | 1.00 | 1.0 | 6.2 | 4.0 | 6.0, -4.0% |  |  |  | yes |"
    assert lines[6] == "| 2 | 5 | plain | 50.0 | 1.00 | 1.0 | 20.0 | 14.0 | 17.0, -15.0% |  |  |  | yes |"
    assert lines[7] == "| 2 | 5 | one pass | 100.0 | 2.00 | 4.0 | 21.0 |  |  | 2.00 | 1.38 |  | NO |"
    assert lines[8] == "| 2 | 5 | two passes | 110.0 | 2.50 | 9.0 | 23.0 |  |  | 2.20 | 1.50 | 1.100 | yes |"
    assert lines[-3] == "| 2 | 5.00 | 4.00 | 6.00 | 7.00 | 1.00 | 32 | 2304 |"
    assert lines[-1].endswith("(page.svg)")
    assert (tmp_path / "page.svg").read_text().count("<!-- 2 stages, two passes -->") == 1

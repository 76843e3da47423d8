"""The results page, from figures made up here."""

from typing import Any

import pytest

from benchmarks.peers import report


def record(token_s: float, first_s: float, growth: float = 0.02) -> dict[str, Any]:
    pass_s = {str(width): [token_s * (1 + growth * (width - 1))] for width in (1, 2, 4, 8, 16, 32)}
    return {"token_s": [token_s], "first_s": [first_s], "pass_s": pass_s, "versions": {}, "peak_bytes": 10**9}


def results(ours: float, theirs: float) -> dict[str, Any]:
    figures = {"reader-edge int8": record(ours, 1.0), "peer q8": record(theirs, 0.9)}
    broken = {"token_s": [], "first_s": [], "pass_s": {}, "error": "Crash: no\nluck | today"}
    figures["peer q4"] = broken
    return {"0.5b-quantised": {"date": "today", "seconds": 1, "command": "run", "figures": figures}}


def test_the_page_has_a_row_for_every_contender_and_a_reason_for_every_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(report, "OUT", tmp_path / "RESULTS.md")
    report.write_report(results(0.020, 0.021))
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| reader-edge int8 | 20.0 | 50.0 | 1.00 |" in page
    assert "| peer q8 | 21.0 |" in page
    assert "| 0.5b-quantised | peer q4 | Crash: no luck / today |" in page

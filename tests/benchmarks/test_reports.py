"""Reports of benchmarks: passes, series, servers beside each other."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import pass_report, report
from benchmarks.peers.measuring import random_prompt
from benchmarks.peers.pass_contenders import pass_contenders
from benchmarks.peers.pass_times import WIDTHS, Effort, measure_passes
from benchmarks.peers.real_source import place_source, real_contenders, shape_of
from benchmarks.peers.runtimes import RUNTIMES, Contender, export_command
from benchmarks.peers.worker_process import WORKERS
from benchmarks.series.drafted import compared
from benchmarks.series.held_out import LEVELS, quantile_loss, ranked_score, seasonal, windows
from benchmarks.series.skill import errors, of_points

RUN = {"date": "today", "machine": "two cores", "seconds": 1, "command": "run"}


def record(token_s: float, first_s: float, growth: float = 0.02) -> dict[str, Any]:
    pass_s = {str(width): [token_s * (1 + growth * (width - 1))] for width in (1, 2, 4, 8, 16, 32)}
    return {"token_s": [token_s], "first_s": [first_s], "pass_s": pass_s, "versions": {}, "peak_bytes": 10**9}


def results(ours: float, theirs: float) -> dict[str, Any]:
    figures = {"reader-edge int8": record(ours, 1.0), "peer q8": record(theirs, 0.9)}
    broken = {"token_s": [], "first_s": [], "pass_s": {}, "error": "Crash: no\nluck | today"}
    figures["peer q4"] = broken
    return {"0.5b-quantised": RUN | {"figures": figures}}


def test_a_contender_has_a_row_and_a_failure_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(report, "OUT", tmp_path / "RESULTS.md")
    report.write_report(results(0.020, 0.021))
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| reader-edge int8 | 20.0 | 50.0 | 1.00 |" in page
    assert "| peer q8 | 21.0 |" in page
    assert "| 0.5b-quantised | peer q4 | Crash: no luck / today |" in page


def demo_contender(tmp_path: Path, demo_folder: Path) -> Contender:
    contender = Contender(replace(RUNTIMES[0], requirements=()), "int8", tmp_path)
    contender.converted("demo").parent.mkdir(parents=True)
    contender.converted("demo").symlink_to(demo_folder)
    return contender


def test_a_kv_cache_is_part_of_a_package_and_a_setting_of_a_gguf_file() -> None:
    found = {contender.name: contender for contender in pass_contenders(Path("cache"), "0.5b")}
    ours, theirs = found["reader-edge int8-kv-fp32"], found["llama.cpp q4_0 kv-q8_0"]
    command = export_command(Path("python"), Path("source"), Path("out"), ours.precision)
    assert command[-4:] == ["--precision", "int8", "--kv", "fp32"]
    assert ours.model("0.5b") == "cache/models/0.5b/reader-edge-int8-kv-fp32"
    assert theirs.model("0.5b") == f"{found['llama.cpp q4_0'].model('0.5b')}:kv-q8_0"
    assert "--kv" not in export_command(Path("python"), Path("source"), Path("out"), "int8-a16")


def test_weights_are_kept_where_a_ready_made_file_has_them(tmp_path: Path) -> None:
    def kept() -> list[Contender]:
        return [each for each in pass_contenders(tmp_path, "real") if each.precision == "keep"]

    assert not kept()
    file = tmp_path / "models" / "real" / "llama.cpp-gguf"
    file.parent.mkdir(parents=True)
    file.touch()
    assert [each.source("real") for each in kept()] == [file]


def test_a_ready_made_file_goes_to_llama_cpps_server_with_each_type_of_drafting(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    assert "llama-server keep ngram-mod" not in [each.name for each in real_contenders(tmp_path, file)]
    file.touch()
    place_source(tmp_path, file, None)
    found = {each.name: each for each in real_contenders(tmp_path, file)}
    theirs = found["llama-server keep ngram-mod"]
    assert theirs.model(shape_of(file)) == f"{found['reader-edge keep'].source(shape_of(file))}:keep ngram-mod"
    assert "llama.cpp q4_0" not in found


@pytest.mark.long
def test_passes_of_every_width_are_timed_behind_every_text(tmp_path: Path, demo_folder: Path) -> None:
    contender = demo_contender(tmp_path, demo_folder)
    missing = replace(contender, precision="int4")
    effort = Effort("demo", pasts=(24, 160), num_answers=2, num_passes=3)
    figures = measure_passes([missing, contender], effort)
    record = figures[contender.name]
    assert list(record["pasts"]) == ["24", "160"]
    for of_past in record["pasts"].values():
        assert len(of_past["token_s"]) == 2
        assert {width: len(seconds) for width, seconds in of_past["pass_s"].items()} == {str(n): 3 for n in WIDTHS}
    assert record["pasts"]["24"]["peak_bytes"] <= record["pasts"]["160"]["peak_bytes"] <= record["peak_bytes"]
    assert record["versions"]
    failed = figures[missing.name]
    assert "int4" in failed["error"]
    assert failed["pasts"]["24"] == {"token_s": [], "peak_bytes": failed["peak_bytes"], "pass_s": {}}


def test_a_worker_cuts_and_extends_what_it_has_read(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(WORKERS))
    worker_class = importlib.import_module("reader_edge_worker").ReaderEdgeWorker

    def rows_after(*prompts: list[int]) -> Any:
        worker = worker_class()
        worker.load(str(demo_folder), threads=1, is_drafted=False)
        for prompt in prompts:
            worker.passes(prompt, [1, 5], 1)
        assert worker.cache.lengths == [len(prompts[-1])]
        return worker.cache.slab[:, :, :, : len(prompts[-1])]

    text, other = random_prompt(300, 0, "demo"), random_prompt(20, 1, "demo")
    expected = rows_after(text[:140] + other)
    np.testing.assert_array_equal(rows_after(text, text[:140], text[:140], text[:140] + other), expected)


def of_past(token_s: float, ms: list[float]) -> dict[str, Any]:
    return {"token_s": [token_s], "peak_bytes": 10**9, "pass_s": {str(n): [s / 1e3] for n, s in enumerate(ms, 1)}}


def test_the_page_has_a_curve_for_every_text_and_the_fidelity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pass_report, "OUT", tmp_path / "PASSES.md")
    monkeypatch.setattr(pass_report, "ROWS", tmp_path / "fidelity.json")
    pass_report.write_pass_report({"demo": {}})
    assert not pass_report.OUT.exists()
    (tmp_path / "fidelity.json").write_text('{"Tiny": {"rows": {"a int8": {"figures": {"mean_kl_nats": 0.00231}}}}}')
    measured = {"64": of_past(0.02, [10, 11, 12, 15]), "512": of_past(0.03, [20, 22, 24, 25])}
    failed = {past: {"token_s": [], "peak_bytes": 0, "pass_s": {}} for past in measured}
    figures = {"a int8": {"pasts": measured}, "b q4": {"pasts": failed, "error": "Crash"}}
    result = RUN | {"model": "Tiny", "figures": figures}
    pass_report.write_pass_report({"passes-real": result})
    page = pass_report.OUT.read_text()
    assert "## A real model: Tiny\n\ntwo cores. today, 1 s: `run`." in page
    assert "Medians of 1 answers and of 1 passes of each width." in page
    assert "| a int8 | 20.0 | 30.0 | 1.00 | 1.00 | 0.0023 |" in page
    assert "T(n) behind 512 tokens:\n\n| n | 1 | 2 | 3 | 4 | T(4)/T(1) |" in page
    assert "| a int8 | 20.0 | 22.0 | 24.0 | 25.0 | 1.25 |" in page
    assert "b q4" not in page


def test_windows_lie_in_the_last_fifth() -> None:
    parts = windows(np.arange(1000.0), 50, 9)
    assert len(parts) == 9
    assert parts[0].coming[0] == 800
    assert parts[-1].coming[-1] == 999
    assert all(part.known[-1] + 1 == part.coming[0] for part in parts)


def test_seasons_go_on_as_they_were_or_as_their_mean() -> None:
    known = np.array([9.0, 1, 2, 3, 4])
    assert seasonal(known, 2, 5).tolist() == [3, 4, 3, 4, 3]
    assert seasonal(known, 2, 3, num_periods=2).tolist() == [2, 3, 2]


def test_scores_of_points_are_absolute_errors_and_those_of_paths_come_near_their_integral() -> None:
    coming = np.array([1.0, -2.0])
    assert quantile_loss(np.zeros((len(LEVELS), 2)), coming) == pytest.approx([1, 2])
    draws = np.random.default_rng(0).standard_normal((20_000, 1))
    normal = 0.2337  # of a standard normal, at its mean
    assert ranked_score(draws, np.zeros(1)) == pytest.approx(normal, abs=0.01)
    assert quantile_loss(np.quantile(draws, LEVELS, axis=0), np.zeros(1)) == pytest.approx(normal, abs=0.03)


def test_errors_are_of_the_first_steps() -> None:
    parts = windows(np.zeros(100), 4, 2)
    forecasts = of_points([np.array([1.0, 3, 9, 9])] * 2)
    assert errors(forecasts, parts, 2) == pytest.approx((2.0, 5**0.5, 2.0))


def test_errors_with_drafts_are_a_share_of_those_without() -> None:
    plain = np.array([[1.0, 4.0], [3.0, 4.0]])
    more, spread = compared(plain, plain + np.array([1.0, 2.0]))
    assert more == pytest.approx([0.5, 0.5])
    assert spread == pytest.approx([0, 0])

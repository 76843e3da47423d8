"""Times of passes: who is compared, what a worker keeps from text to text, and the page."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import pass_report
from benchmarks.peers.measuring import random_prompt
from benchmarks.peers.pass_contenders import pass_contenders
from benchmarks.peers.pass_times import WIDTHS, Effort, measure_passes
from benchmarks.peers.runtimes import RUNTIMES, Contender, export_command
from benchmarks.peers.worker_process import WORKERS


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


def test_passes_of_every_width_are_timed_behind_every_text_whoever_else_fails(
    tmp_path: Path, demo_folder: Path
) -> None:
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


def test_the_page_has_a_curve_for_every_text_and_what_fidelity_knows_of_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pass_report, "OUT", tmp_path / "PASSES.md")
    monkeypatch.setattr(pass_report, "ROWS", tmp_path / "fidelity.json")
    pass_report.write_pass_report({"demo": {}})
    assert not pass_report.OUT.exists()
    (tmp_path / "fidelity.json").write_text('{"Tiny": {"rows": {"a int8": {"figures": {"mean_kl_nats": 0.00231}}}}}')
    measured = {"64": of_past(0.02, [10, 11, 12, 15]), "512": of_past(0.03, [20, 22, 24, 25])}
    failed = {past: {"token_s": [], "peak_bytes": 0, "pass_s": {}} for past in measured}
    figures = {"a int8": {"pasts": measured}, "b q4": {"pasts": failed, "error": "Crash"}}
    result = {"model": "Tiny", "date": "today", "seconds": 9, "command": "run", "figures": figures}
    pass_report.write_pass_report({"passes-real": result})
    page = pass_report.OUT.read_text()
    assert "## A real model: Tiny" in page
    assert "Medians of 1 answers and of 1 passes of each width." in page
    assert "| a int8 | 20.0 | 30.0 | 1.00 | 1.00 | 0.0023 |" in page
    assert "T(n) behind 512 tokens:\n\n| n | 1 | 2 | 3 | 4 | T(4)/T(1) |" in page
    assert "| a int8 | 20.0 | 22.0 | 24.0 | 25.0 | 1.25 |" in page
    assert "b q4" not in page

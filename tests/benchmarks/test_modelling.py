"""Modelled drafting: recorded answers over pass times."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.passes.__main__ import compared, curves_of
from benchmarks.passes.contenders import GgufContender, PackageContender, contender
from benchmarks.passes.modelling import modelled, replay_reader_edge
from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge_runtime import GenerationStats


def passes(by_width: dict[int, int], num_tokens: int) -> GenerationStats:
    num_steps = sum(by_width.values())
    return GenerationStats(
        num_steps=num_steps, num_accepted_tokens=num_tokens - num_steps, steps_by_width=Counter(by_width)
    )


def test_modelled_time_weighs_passes_by_their_width() -> None:
    replay = passes({1: 2, 3: 1}, num_tokens=5)
    result = modelled(replay, {1: 1.0, 2: 1.5, 4: 2.5})  # a pass of 3 lies between those of 2 and 4
    assert result.token_s == pytest.approx((2 * 1.0 + 2.0) / 5)
    assert result.speed_up == pytest.approx(1.0 / 0.8)
    assert result.acceptance_length == pytest.approx(5 / 3)


def test_time_spent_drafting_counts() -> None:
    replay = passes({1: 4}, num_tokens=4)
    assert modelled(replay, {1: 1.0}, drafting_s=4.0).speed_up == pytest.approx(0.5)


def test_widths_beyond_the_measured_ones_are_no_guess() -> None:
    with pytest.raises(ValueError, match="pass of 9 tokens was not measured, 8 at most"):
        modelled(passes({9: 1}, num_tokens=9), {1: 1.0, 8: 2.0})


def test_reader_edge_drafts_wide_only_where_width_is_cheap() -> None:
    text = list(range(10, 60))
    request = RecordedRequest("copy", [RecordedTurn(text + text, [*text, 5])])
    cheap = replay_reader_edge([request], {1: 1.0, 16: 1.0})
    dear = replay_reader_edge([request], {1: 1.0, 16: 100.0})
    assert cheap.num_decoded_tokens == dear.num_decoded_tokens == 51
    assert cheap.acceptance_length > 4
    assert max(dear.steps_by_width) == 1
    assert min(dear.prefill_s, dear.draft_s, dear.learn_s) > 0


def test_contenders_are_compared_over_the_passes_of_one_past() -> None:
    figures = {
        "slow": {"pasts": {"64": {"pass_s": {"1": [9.0]}}, "512": {"pass_s": {"1": [2.0, 4.0, 3.0], "2": [3.0]}}}},
        "fast": {"pasts": {"64": {"pass_s": {}}, "512": {"pass_s": {"1": [1.5], "2": [1.5]}}}},
        "failed": {"pasts": {"64": {"pass_s": {}}}},
    }
    curves = curves_of(figures, 512)
    assert curves == {"slow": {1: 3.0, 2: 3.0}, "fast": {1: 1.5, 2: 1.5}}
    assert curves_of(figures, 64) == {"slow": {1: 9.0}}
    request = RecordedRequest("copy", [RecordedTurn(list(range(10, 30)), list(range(10, 30)))])
    rows = compared({"copies": [request]}, curves)
    assert rows[0] == "| drafted tokens/s | slow | fast |"
    assert all("(2.00)" in row for row in rows[-2:])
    assert [row.split(" | ")[0] for row in rows[-2:]] == ["| copies", "| mean"]


def test_contenders_are_packages_and_files_by_name(demo_folder: Path, tmp_path: Path) -> None:
    ours = contender(f"ours={demo_folder}", tmp_path)
    assert isinstance(ours, PackageContender)
    assert (ours.name, ours.model("")) == ("ours", str(demo_folder.resolve()))
    file = tmp_path / "model.gguf"
    file.touch()
    theirs = contender(f"theirs={file}@{sys.executable}", tmp_path)
    assert isinstance(theirs, GgufContender)
    assert (theirs.name, theirs.model(""), theirs.python) == ("theirs", str(file.resolve()), Path(sys.executable))
    for text in (str(demo_folder), f"={demo_folder}", f"ours={tmp_path}", f"theirs={file}", f"theirs={file}@nowhere"):
        with pytest.raises(ValueError, match="is not NAME="):
            contender(text, tmp_path)
    named = contender(f"theirs={file}@{sys.executable},openvino-genai", tmp_path)
    assert (theirs.runtime.name, named.runtime.name) == ("llama.cpp", "openvino-genai")
    with pytest.raises(ValueError, match="no runtime 'tar'; there are reader-edge, "):
        contender(f"theirs={file}@{sys.executable},tar", tmp_path)

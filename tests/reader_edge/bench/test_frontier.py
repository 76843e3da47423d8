"""`reader-edge bench frontier` on small recordings, with pass times from a file: no model runs."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reader_edge.bench.frontier.draft_stores import DraftStores
from reader_edge.bench.frontier.frontier import Frontier, Speculated
from reader_edge.bench.frontier.frontier_plot import draw_frontier
from reader_edge.bench.frontier.frontier_report import frontier_fields, print_frontier
from reader_edge.bench.frontier.head import ACCURACIES, HeadNeed
from reader_edge.bench.frontier.judge import Judge
from reader_edge.bench.frontier.next_gain import next_gain_sentence
from reader_edge.bench.frontier.pass_curve import PassCurve
from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge.cli import main
from reader_edge_runtime.stats import GenerationStats

COST = {"batch_size": 1, "pasts": [64], "widths": [1, 4, 8], "seconds": [[0.01, 0.011, 0.013]], "row_s": 0.0}
NODES = (1, 3, 7)


@pytest.fixture
def cost(tmp_path: Path) -> Path:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(COST))
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    fox = "the quick brown fox jumps over the lazy dog and the quick brown fox sleeps "
    requests = [
        {"task": "copy", "turns": [{"input": fox, "output": fox}, {"input": "again", "output": fox}]},
        {"task": "new", "turns": [{"input": "a walk", "output": "begins where no road was ever seen"}]},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps(request) for request in requests))
    return path


def run(recording: Path, demo: Path, cost: Path, *options: str) -> Result:
    arguments = ["bench", "frontier", str(recording), str(demo), "--cost", str(cost), *options]
    return CliRunner().invoke(main, arguments)


def told(recording: Path, demo: Path, cost: Path, *options: str) -> dict[str, object]:
    result = run(recording, demo, cost, "--nodes", "1,3,7", "--sources", "context,history", "--json", *options)
    assert result.exit_code == 0, result.output
    fields: dict[str, object] = json.loads(result.output)
    return fields


def judged(texts: list[list[int]], seconds: list[float]) -> Frontier:
    """Of answers, each to a prompt of its own, and seconds of passes over 1, 2, ... nodes."""
    requests = [RecordedRequest("", [RecordedTurn([1000 + i], text)]) for i, text in enumerate(texts)]
    curve = PassCurve(np.array([np.inf, *seconds]), 64)
    return Judge(requests, DraftStores(100_000, 0), curve, 0.0).frontier([1, 3, 7], [])


def test_the_answer_itself_bounds_the_best_of_our_candidates_and_those_bound_ours(
    recording: Path, demo_folder: Path, cost: Path
) -> None:
    points = told(recording, demo_folder, cost)["points"]
    assert isinstance(points, list)
    for point, num_nodes in zip(points, NODES, strict=True):
        lengths = [point[way]["acceptance_length"] for way in ("ours", "best", "oracle")]
        assert 1 < lengths[0] <= lengths[1] <= lengths[2] <= num_nodes + 1
        for way in ("ours", "best", "oracle"):
            rejections = point[way]["rejections"]
            assert (
                rejections["counted"] == rejections["expected"] == point[way]["steps"] - 3
            )  # answers end three passes
    assert points[0]["ours"]["acceptance_length_by_task"].keys() == {"copy", "new"}


def test_a_table_a_plot_and_one_sentence_tell_it(
    recording: Path, demo_folder: Path, cost: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="plots are an extra")
    options = ("--nodes", "1,7", "--sources", "context,history", "--head", "0.1,50", "--plot", str(tmp_path / "f.svg"))
    result = run(recording, demo_folder, cost, *options)
    assert result.exit_code == 0, result.output
    assert "0 (plain)" in result.output
    assert "cannot pay" in result.output
    assert "if right in" in " ".join(result.output.split())
    assert "Modelled" in result.output
    assert result.output.count("The next gain lies in") == 1
    assert (tmp_path / "f.svg").read_text().lstrip().startswith("<?xml")


def test_the_next_gain_is_where_the_figures_say() -> None:
    rng = np.random.default_rng(0)
    noise, texts = rng.integers(4, size=(4, 40)).tolist(), rng.integers(1000, size=(4, 40)).tolist()
    flat, steep = [0.01] * 8, [0.01 * width for width in range(1, 9)]
    assert next_gain_sentence(judged(noise, flat)).startswith("The next gain lies in better evidence: at most")
    assert next_gain_sentence(judged(noise, steep)).startswith("The next gain lies in a cheaper pass: at most")
    repeated = judged([*texts, *texts], flat)  # half of the history has forgotten an answer before it comes again
    assert next_gain_sentence(repeated).startswith("The next gain lies in more memory: at most")
    nothing, *_, half, all_of_it = repeated.stores
    assert [each.size.amount for each in (nothing, half, all_of_it)] == [0, 160, 320]
    assert nothing.num_bytes < half.num_bytes < all_of_it.num_bytes
    assert all_of_it.reach.tokens_per_s > 1.5 * half.reach.tokens_per_s
    assert all_of_it.reach.tokens_per_s == pytest.approx(repeated.fastest.ours.tokens_per_s, rel=0.2)


def test_a_head_that_knows_what_it_must_neither_gains_nor_loses() -> None:
    stats = GenerationStats(num_steps=100, num_accepted_tokens=80, accepted_by_depth=Counter({1: 40, 2: 40}))
    head = HeadNeed.of(stats, step_s=0.02, share=0.1, plain_s=0.01)
    num_tokens = 180 + 60 * head.acceptance
    assert num_tokens / (100 * (0.02 + 0.1 * 0.01)) == pytest.approx(180 / (100 * 0.02))
    assert HeadNeed.of(stats, 0.02, 0.0, 0.01).acceptance == 0
    speeds = [(180 + 60 * right) / (100 * (0.02 + 0.1 * 0.01)) for right in ACCURACIES]
    assert head.tokens_per_s == pytest.approx(speeds)
    assert not HeadNeed.of(stats, 0.02, 50, 0.01).can_pay
    stats.accepted_by_depth[1] = 100
    assert not HeadNeed.of(stats, 0.02, 0.1, 0.01).can_pay  # nothing is missed


@pytest.mark.parametrize(
    "fields",
    [
        "[]",
        "{",
        "[" * 100_000,
        json.dumps(COST | {"seconds": [[0.01]]}),
        json.dumps(COST | {"seconds": [[0.01, -1, float("nan")]]}),
        json.dumps(COST | {"widths": [1, 4, 10**9]}),
        json.dumps(COST | {"batch_size": 4}),
        json.dumps(COST | {"widths": [2, 4, 8]}),
    ],
)
def test_what_holds_no_pass_times_is_told(recording: Path, demo_folder: Path, cost: Path, fields: str) -> None:
    cost.write_text(fields)
    result = run(recording, demo_folder, cost, "--sources", "context")
    assert result.exit_code == 1
    assert f"'{cost}' h" in result.output
    assert result.output.count("\n") == 1


def test_what_cannot_be_asked_is_told(recording: Path, demo_folder: Path, cost: Path) -> None:
    for options, code, message in [
        (("--sources", "context", "--nodes", "8"), 2, "A pass over 8 drafted nodes was not measured: name 7 at most."),
        (("--sources", "context", "--head", "nan"), 2, "numbers from 0 to 100"),
        (("--sources", "context", "--head", "many"), 2, "list of numbers"),
        (("--temperature", "-1"), 2, "not in the range"),
        ((), 2, "does not say what its model thought likely"),
        (("--plot", "f.txt"), 2, "names no kind of plot"),
    ]:
        result = run(recording, demo_folder, cost, *options)
        assert result.exit_code == code, result.output
        assert message in result.output
    empty = RecordedRequest("", [RecordedTurn([1], [])])
    with pytest.raises(Exception, match="No recorded answer has a token to draft"):
        Judge([empty], DraftStores(0, 0), PassCurve(np.array([np.inf, 1, 1]), 0), 0.0).frontier([1], [])


def test_a_package_without_a_speculator_has_no_curve_of_it(recording: Path, demo_folder: Path, cost: Path) -> None:
    result = run(recording, demo_folder, cost, "--nodes", "1", "--sources", "context", "--speculator")
    assert result.exit_code == 2
    assert "has no speculator" in result.output


def test_what_a_speculator_reaches_and_needs_is_told_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="plots are an extra")
    found = judged([list(range(40))], [0.01] * 8)
    assert "speculated" not in frontier_fields(found)["points"][0]  # type: ignore[index]
    without = replace(found.points[0].ours, beside_s=0.0)  # in 0.01 s a step, which is what its pass takes
    both = Speculated(replace(found.points[0].best, beside_s=0.005), without)
    assert both.needed == pytest.approx(1.5 * without.stats.acceptance_length)
    asked = replace(found, points=tuple(replace(point, speculated=both) for point in found.points))
    for point in frontier_fields(asked)["points"]:  # type: ignore[attr-defined]
        assert point["speculated"]["needed_acceptance_length"] == both.needed
        assert point["speculated"]["asked"]["beside_s"] == 0.005
        assert point["speculated"]["without"]["beside_s"] == 0.0
    draw_frontier(found, tmp_path / "without.svg")
    draw_frontier(asked, tmp_path / "with.svg")
    assert (tmp_path / "with.svg").stat().st_size > (tmp_path / "without.svg").stat().st_size
    print_frontier(asked)
    assert "needed to be as" in capsys.readouterr().out


def test_lossy_ways_are_told_and_drawn_beside_the_line(
    recording: Path, demo_folder: Path, cost: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="plots are an extra")
    exact = {"way": "exact", "tasks": 5, "right": 4, "tokens": 50, "decoded_tokens": 45, "steps": 20, "changed": 0}
    file, plot = tmp_path / "lossy.json", tmp_path / "f.svg"
    file.write_text(json.dumps({"ways": [exact, exact | {"way": "relaxed", "changed": 5}]}), encoding="utf-8")
    assert "lossy" not in told(recording, demo_folder, cost)
    options = ("--nodes", "1", "--sources", "context", "--lossy", str(file))
    tables = run(recording, demo_folder, cost, *options, "--plot", str(plot))
    assert "line of quality against rejections" in tables.output
    assert plot.stat().st_size > 0
    fields = json.loads(run(recording, demo_folder, cost, *options, "--json").output)["lossy"]
    assert [each["changed"] for each in fields] == [0.0, 0.1]

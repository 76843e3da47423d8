"""`reader-edge lossy bench`: every way answers the same tasks, and is paired with exact answers."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.lossy.lossy_report import bench_fields
from reader_edge.lossy.tasks import tasks
from reader_edge.lossy.trial import Answered, Way, try_ways
from reader_edge.lossy.way_figures import way_figures
from reader_edge_runtime import Engine

ANSWERED = Answered("copy", True, (1, 2, 3, 4), 3, 2, 0.5, 0, 0.0, 0.0)


def test_a_bench_tells_of_exact_plain_and_lossy_answers() -> None:
    arguments = ["lossy", "bench", "--tasks", "5", "--rounds", "1", "--no-calibrate", "--plain"]
    told = CliRunner().invoke(main, [*arguments, "--try", "relaxed:9:9", "--json"], catch_exceptions=False)
    exact, plain, relaxed = json.loads(told.stdout)["ways"]
    assert [each["way"] for each in (exact, plain, relaxed)] == ["exact", "plain", "relaxed:9:9"]
    assert plain["same"] == exact["same"] == 5
    assert exact["changed"] == exact["lost"] == exact["won"] == 0
    assert plain["tokens_per_step"] == 1.0
    assert set(relaxed["kinds"]) == {"lookup", "copy", "edit", "json", "arithmetic"}


def test_lists_of_figures_are_a_grid() -> None:
    arguments = ["lossy", "bench", "--tasks", "5", "--rounds", "1", "--no-calibrate", "--json"]
    told = CliRunner().invoke(main, [*arguments, "--try", "big-little:2,5:0.3,0.60"], catch_exceptions=False)
    ways = [each["way"] for each in json.loads(told.stdout)["ways"]]
    assert ways == ["exact", *(f"big-little:{pair}" for pair in ("2:0.3", "2:0.6", "5:0.3", "5:0.6"))]


@pytest.mark.long
def test_views_are_tried_beside_what_was_retrieved_alone() -> None:
    arguments = ["lossy", "bench", "--long", "--seed", "4", "--tasks", "6", "--rounds", "1", "--no-calibrate"]
    arguments += ["--retrieved", "64", "--json"]
    views = ("views:64:0", "views:64:0.5", "views:64:1")
    tried = [part for each in views for part in ("--try", each)]
    told = CliRunner().invoke(main, [*arguments, *tried], catch_exceptions=False)
    exact, retrieved, without, mixed, alone = json.loads(told.stdout)["ways"]
    assert set(exact["kinds"]) == {"city", "number", "job"}
    assert retrieved["way"] == "retrieved:64"
    assert [each["way"] for each in (without, mixed, alone)] == list(views)
    assert without["same"] == exact["tasks"] == 6
    assert without["changed"] == without["lost"] == without["won"] == 0
    assert (alone["tokens"], alone["right"]) == (retrieved["tokens"], retrieved["right"])


def test_the_default_rules_are_told_of_in_tables() -> None:
    told = CliRunner().invoke(main, ["lossy", "bench", "--tasks", "5", "--rounds", "2", "--no-calibrate"])
    assert told.exit_code == 0
    for part in ("relaxed:0.69:0.02", "relaxed:2.3:0.1", "big-little:2:0.6", "tokens a step", "5 generated tasks"):
        assert part in told.stdout


@pytest.mark.parametrize(
    "wrong", ["relaxed", "relaxed:1", "relaxed:a:b", "judge::1", "judge:1", "big-little:1:2:3", "other:1:2"]
)
def test_what_is_no_rule_is_refused(wrong: str) -> None:
    refused = CliRunner().invoke(main, ["lossy", "bench", "--try", wrong])
    assert refused.exit_code == 2
    assert "judge:FILE:THRESHOLD or views:CONTEXT:WEIGHT." in refused.stderr


@pytest.mark.parametrize(
    ("option", "value", "code", "words"),
    [
        ("--tasks", "10001", 2, "5<=x<=10000"),
        ("--rounds", "1001", 2, "1<=x<=1000"),
        ("--draft-context", "268435457", 2, "268435457 is not in the range 0<=x<=268435456"),
        ("--draft-context", "-1", 2, "-1 is not in the range"),
    ],
)
def test_numbers_beyond_their_range_are_refused(option: str, value: str, code: int, words: str) -> None:
    result = CliRunner().invoke(main, ["lossy", "bench", option, value])
    assert result.exit_code == code
    assert words in result.stderr


@pytest.mark.parametrize("context", ["64.5", "inf", "63", "1e+300"])
def test_a_context_of_views_is_a_number_of_tokens(context: str) -> None:
    refused = CliRunner().invoke(main, ["lossy", "bench", "--try", f"views:{context}:0.5"])
    assert refused.exit_code == 2
    assert f"context is {context}, but must be" in refused.stderr


def test_a_strength_beyond_its_range_is_refused() -> None:
    refused = CliRunner().invoke(main, ["lossy", "bench", "--try", "relaxed:-1:0"])
    assert refused.exit_code == 2
    assert "gap is -1.0, but must be from 0 to 100." in refused.stderr


def test_figures_are_paired_with_the_first_way(engine: Engine) -> None:
    exact, other = Way("exact", engine), Way("other", engine)
    exact.answers = [ANSWERED, replace(ANSWERED, is_right=False), ANSWERED]
    other.answers = [
        replace(ANSWERED, is_right=False, token_ids=(1, 2, 3, 5), num_changed=1, nats=0.6),
        replace(ANSWERED, kind="edit"),
        ANSWERED,
    ]
    exact.seconds, other.seconds = [[1.0, 1.0, 1.0]] * 3, [[1.0, 0.5, 0.5], [1.0, 1.0, 1.0], [2.0, 1.0, 1.0]]
    figures = way_figures(other, exact)
    assert (figures.right, figures.lost, figures.won, figures.same, figures.p) == (2, 1, 1, 2, 1.0)
    assert (figures.tokens, figures.steps, figures.changed) == (12, 6, 1)
    assert figures.nats_per_token == pytest.approx(0.05)
    assert figures.tokens_per_step == 1.5
    assert (figures.seconds, figures.seconds_quartiles) == (3.0, (2.5, 3.5))
    assert [(kind, each.right, each.tasks) for kind, each in figures.kinds.items()] == [("copy", 1, 2), ("edit", 1, 1)]
    fields = bench_fields([way_figures(exact, exact), figures])
    assert fields["tasks"] == 3
    assert replace(figures, steps=0).tokens_per_step == 0.0


def test_ways_take_turns_and_remember_nothing(engine: Engine) -> None:
    ways, done = [Way("exact", engine), Way("again", engine)], []
    try_ways(ways, tasks(2), 2, lambda *progress: done.append(progress))
    assert done[-1] == (8, 8)
    assert [len(way.seconds) for way in ways] == [2, 2]
    assert [each.num_steps for each in ways[0].answers] == [each.num_steps for each in ways[1].answers]

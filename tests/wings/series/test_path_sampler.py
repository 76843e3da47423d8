"""Sample paths keep the model's law; rows have times of the calendar."""

import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.errors import SeriesError
from reader_edge_series import coupling, path_sampler
from reader_edge_series.draft_length import DraftLength
from reader_edge_series.patch_distribution import Gaussian
from reader_edge_series.patch_drafts import Analogs, OwnPatches, SmallModel
from reader_edge_series.path_sampler import ForecastStats, PathSampler
from reader_edge_series.paths import PatchDrafts
from reader_edge_series.prompt import Prompt
from reader_edge_series.tables.row_times import row_times, step_name
from tests.wings.series.series_target import FakePatches, P, same_law

NUM, NUM_PATCHES = 20_000, 4
PAST = np.sin(np.arange(200) / 3.0) + 0.1 * np.cos(np.arange(200))
SOURCES: dict[str, Callable[[], PatchDrafts]] = {
    "own": lambda: OwnPatches(3),
    "model": lambda: SmallModel(FakePatches(weight=0.4, log_scale=-0.3, bends=0.1)),
    "analogs": lambda: Analogs(P),
}


class FixedLength(DraftLength):
    """Drafts as many as it can."""

    def choose(self, num_left: int, is_begun: bool = True) -> int:
        return min(self.most, num_left - 1)


def published(bound: Gaussian, draft: Gaussian, patches: Float64Array, random: np.random.Generator) -> Float64Array:
    """After a rejection the published rule draws from the model again, not from the residual."""
    return coupling.drawn(bound, random)


class DraftsLater(FixedLength):
    """Has undrafted steps made first."""

    def choose(self, num_left: int, is_begun: bool = True) -> int:
        return super().choose(num_left, is_begun) if num_left < NUM_PATCHES - 1 else 0


def _sample(
    drafts: PatchDrafts | None,
    num_paths: int,
    seed: int = 0,
    target: FakePatches | None = None,
) -> tuple[Float64Array, ForecastStats]:
    target, stats = target or FakePatches(), ForecastStats()
    prompt = Prompt.of(PAST, target.sizes, num_paths)
    sampler = PathSampler(target, drafts)
    paths = sampler.sample([prompt], NUM_PATCHES, np.random.default_rng(seed), stats)
    return paths.reshape(num_paths, -1), stats


@pytest.fixture
def _drafts_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_sampler, "DraftLength", FixedLength)


@pytest.fixture(scope="module")
def plain() -> Float64Array:
    return _sample(None, NUM, seed=1)[0]


@pytest.mark.usefixtures("_drafts_most")
@pytest.mark.parametrize("name", SOURCES)
def test_drafted_paths_have_the_law_of_undrafted_ones(name: str, plain: Float64Array) -> None:
    paths, stats = _sample(SOURCES[name](), NUM, seed=2)
    assert 0 < stats.num_accepted < stats.num_drafted
    assert same_law(paths, plain)


@pytest.mark.usefixtures("_drafts_most")
@pytest.mark.parametrize("name", SOURCES)
def test_the_published_rule_changes_the_law(name: str, plain: Float64Array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coupling, "replaced", published)
    paths, _ = _sample(SOURCES[name](), NUM, seed=2)
    assert not same_law(paths, plain)


@pytest.mark.parametrize("name", SOURCES)
def test_drafts_within_a_forecast_keep_the_law(name: str, plain: Float64Array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_sampler, "DraftLength", DraftsLater)
    paths, stats = _sample(SOURCES[name](), NUM, seed=2)
    assert 0 < stats.num_accepted < stats.num_drafted
    assert same_law(paths, plain)


@pytest.mark.usefixtures("_drafts_most")
@pytest.mark.parametrize("name", SOURCES)
def test_paths_of_a_model_that_runs_away_stay_within_limits_and_keep_their_law(name: str) -> None:
    target = FakePatches(weight=3.0)
    low, high = Prompt.of(PAST, target.sizes, 1).limits
    runs = [_sample(drafts, NUM, seed, target=target)[0] for seed, drafts in enumerate([None, SOURCES[name]()])]
    for paths in runs:
        assert (paths.min(), paths.max()) == (low, high)
    assert same_law(*runs)


@pytest.mark.parametrize("name", SOURCES)
def test_by_rule_the_same_numbers_give_the_same_paths_by_any_clock(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for seconds in (1e-9, 10.0):
        monkeypatch.setattr(path_sampler, "time", SimpleNamespace(perf_counter=itertools.count(step=seconds).__next__))
        target, stats, random = FakePatches(), ForecastStats(), np.random.default_rng(7)
        sampler = PathSampler(target, SOURCES[name](), is_timed=False)
        prompt = Prompt.of(PAST, target.sizes, 1)
        found.append([sampler.sample([prompt], 40, random, stats) for _ in range(24)])
        assert stats.num_drafted > 0
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.usefixtures("_drafts_most")
def test_drafts_of_the_very_model_need_a_pass_for_each_seven_patches() -> None:
    target, stats = FakePatches(), ForecastStats()
    sampler = PathSampler(target, SmallModel(FakePatches()))
    sampler.sample([Prompt.of(PAST, target.sizes, 3)], 15, np.random.default_rng(0), stats)
    assert stats.num_passes == 2
    assert stats.acceptance_rate == 1.0


@pytest.mark.long
@pytest.mark.usefixtures("_drafts_most")
def test_where_deviations_never_change_drafts_are_mirrored_and_the_law_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Analogs have the deviations of the patch before, which are then the model's own."""
    mirrored, reflected, thinned = [0], coupling._reflected, coupling._thinned

    def counted(bound: Gaussian, draft: Gaussian, patches: Float64Array) -> Float64Array:
        mirrored[0] += len(patches)
        return reflected(bound, draft, patches)

    def unasked(bound: Gaussian, draft: Gaussian, random: np.random.Generator) -> Float64Array:
        assert not len(bound.mean)
        return thinned(bound, draft, random)

    monkeypatch.setattr(coupling, "_reflected", counted)
    monkeypatch.setattr(coupling, "_thinned", unasked)
    paths, stats = _sample(Analogs(P), NUM, seed=2, target=FakePatches(bends=0.0))
    assert mirrored[0] > NUM / 10
    assert stats.num_accepted > 0
    assert same_law(paths, _sample(None, NUM, seed=1, target=FakePatches(bends=0.0))[0])


def test_a_prompt_is_read_once_for_all_of_its_paths() -> None:
    target = FakePatches()
    prompts = [Prompt.of(PAST, target.sizes, num_paths) for num_paths in (50, 3)]
    PathSampler(target, None).sample(prompts, 2, np.random.default_rng(0), ForecastStats())
    assert target.passes == [(1, len(prompt.patches)) for prompt in prompts] + [(53, 1)]


def test_undrafted_paths_need_a_pass_for_each_patch_but_the_first() -> None:
    _, stats = _sample(None, 5)
    assert (stats.num_passes, stats.num_drafted, stats.acceptance_rate) == (NUM_PATCHES - 1, 0, 0.0)


class Unasked(OwnPatches):
    """Fails where a draft is made, or made ready."""

    def begin(self, prompts: Sequence[Prompt], num_patches: int) -> None:
        raise AssertionError("drafts begin")


def test_where_no_draft_can_pay_none_is_begun() -> None:
    """Of so many paths one is always behind, so that four patches take as many passes with drafts as without."""
    sampler, stats, target = PathSampler(FakePatches(), Unasked(3)), ForecastStats(), FakePatches()
    for seed in range(3):
        sampler.sample([Prompt.of(PAST, target.sizes, 64)], NUM_PATCHES, np.random.default_rng(seed), stats)
    assert (stats.num_passes, stats.num_drafted) == (3 * (NUM_PATCHES - 1), 0)


@pytest.mark.usefixtures("_drafts_most")
@pytest.mark.parametrize("name", [None, *SOURCES])
def test_several_series_are_sampled_side_by_side(name: str | None) -> None:
    """Each goes on from its own past: means are those of the series alone."""
    target, other = FakePatches(), np.cos(np.arange(90) / 2.0) * 50
    prompts = [Prompt.of(PAST, target.sizes, 2000), Prompt.of(other, target.sizes, 1000)]
    drafts = None if name is None else SOURCES[name]()
    paths = PathSampler(target, drafts).sample(prompts, 3, np.random.default_rng(3), ForecastStats())
    for prompt, part in zip(prompts, (paths[:2000], paths[2000:]), strict=True):
        alone = PathSampler(target, None).sample([prompt], 3, np.random.default_rng(4), ForecastStats())
        assert same_law(part.reshape(len(part), -1), alone.reshape(len(alone), -1))


BERLIN, CAIRO = "Europe/Berlin", "Africa/Cairo"
TABLE = Path("a.parquet")


def _hours(zone: str, number: int, step: timedelta = timedelta(hours=1)) -> pa.Array:
    """From the evening before Berlin's clock goes from two to three."""
    start = datetime(2020, 3, 28, 20, tzinfo=UTC)
    return pa.array([start + row * step for row in range(number)], pa.timestamp("us", zone))


def _days(zone: str, start: datetime, number: int) -> pa.Array:
    """Midnights of the zone."""
    days = [(start + timedelta(days=row)).replace(tzinfo=ZoneInfo(zone)) for row in range(number)]
    return pa.array(days, pa.timestamp("us", zone))


def _coming(column: pa.Array, horizon: int) -> list[str]:
    times = row_times(column, TABLE)
    assert times is not None
    return [str(times.coming(number)) for number in range(1, horizon + 1)]


def test_hours_go_on_across_a_change_of_the_clock() -> None:
    assert _coming(_hours(BERLIN, 4), 3) == [
        "2020-03-29 01:00:00+01:00",
        "2020-03-29 03:00:00+02:00",
        "2020-03-29 04:00:00+02:00",
    ]


def test_hours_across_a_change_of_the_clock_are_equally_apart() -> None:
    assert _coming(_hours(BERLIN, 48), 1) == ["2020-03-30 22:00:00+02:00"]


def test_a_zone_may_be_an_offset() -> None:
    assert _coming(_hours("+01:00", 5), 1) == ["2020-03-29 02:00:00+01:00"]


def test_days_of_a_zone_begin_at_its_midnight_whatever_hours_they_have() -> None:
    assert _coming(_days(BERLIN, datetime(2026, 3, 20), 9), 2) == [
        "2026-03-29 00:00:00+01:00",
        "2026-03-30 00:00:00+02:00",
    ]
    assert _coming(_days(BERLIN, datetime(2026, 3, 20), 20), 1) == ["2026-04-09 00:00:00+02:00"]


def test_a_midnight_that_the_clock_leaves_out_is_the_hour_behind_it() -> None:
    assert _coming(_days(CAIRO, datetime(2025, 4, 20), 5), 2) == [
        "2025-04-25 01:00:00+03:00",
        "2025-04-26 00:00:00+03:00",
    ]
    assert _coming(_days(CAIRO, datetime(2025, 4, 20), 7), 1) == ["2025-04-27 00:00:00+03:00"]


def test_days_of_utc_are_equally_apart_in_a_zone() -> None:
    assert _coming(_hours(BERLIN, 5, timedelta(days=1)), 1) == ["2020-04-02 22:00:00+02:00"]


def test_a_day_that_is_missing_is_found_behind_a_change_of_the_clock() -> None:
    days = _days(BERLIN, datetime(2026, 3, 25), 12)
    sentence = r"Row 9 .*00:00:00\+02:00, 2 days later than .*, where others are 1 day apart"
    with pytest.raises(SeriesError, match=sentence):
        row_times(pa.concat_arrays([days[:8], days[9:]]), TABLE)


@pytest.mark.parametrize("step", [timedelta(), timedelta(days=-1), timedelta(hours=-1)])
@pytest.mark.parametrize("zone", ["UTC", BERLIN])
def test_times_that_do_not_go_on_are_refused(step: timedelta, zone: str) -> None:
    behind = {0: "as is", -3600: "1 hour earlier than", -86400: "1 day earlier than"}[step // timedelta(seconds=1)]
    sentence = f"Row 2 of 'a.parquet' is of .*, {behind} the row before: fill gaps"
    with pytest.raises(SeriesError, match=sentence):
        row_times(_hours(zone, 2, step), TABLE)


@pytest.mark.parametrize(
    ("days", "coming", "step"),
    [
        (["2026-01-01", "2026-02-01", "2026-03-01"], ["2026-04-01", "2026-05-01"], "1 month"),
        (["2026-01-31", "2026-02-28", "2026-03-31"], ["2026-04-30", "2026-05-31"], "1 month"),
        (["2025-11-30", "2025-12-31"], ["2026-01-31", "2026-02-28"], "1 month"),
        (["2025-12-30", "2026-01-30", "2026-02-28"], ["2026-03-30", "2026-04-30"], "1 month"),
        (["2025-03-31", "2025-06-30", "2025-09-30"], ["2025-12-31", "2026-03-31"], "3 months"),
        (["2022-02-28", "2023-02-28", "2024-02-29"], ["2025-02-28", "2026-02-28"], "1 year"),
        (["2019-12-31", "2020-01-07", "2020-01-14"], ["2020-01-21", "2020-01-28"], "7 days"),
    ],
)
@pytest.mark.parametrize("zone", [None, BERLIN])
def test_months_and_years_are_the_calendar_s(days: list[str], coming: list[str], step: str, zone: str | None) -> None:
    times = [datetime.fromisoformat(day).replace(tzinfo=None if zone is None else ZoneInfo(zone)) for day in days]
    found = row_times(pa.array(times, pa.timestamp("us", zone)), TABLE)
    assert found is not None
    assert [str(found.coming(number).date()) for number in (1, 2)] == coming
    assert {found.coming(number).hour for number in range(-1, 9)} == {0}
    assert step_name(found.step) == step


def test_a_month_that_is_missing_is_named() -> None:
    months = pa.array([datetime(2026, month, 1) for month in (1, 2, 3, 5)], pa.timestamp("us"))
    with pytest.raises(SeriesError, match=r"Row 4 .* 61 days later .*, where others are 1 month apart"):
        row_times(months, TABLE)


def test_months_end_where_the_calendar_does() -> None:
    found = row_times(pa.array([datetime(9999, 10, 1), datetime(9999, 11, 1)], pa.timestamp("us")), TABLE)
    assert found is not None
    assert found.coming(1) == datetime(9999, 12, 1)
    with pytest.raises(OverflowError):
        found.coming(2)


def test_one_row_has_no_step() -> None:
    assert row_times(_hours(BERLIN, 1), TABLE) is None


@pytest.mark.parametrize("zone", ["Mars/Phobos", "../../../etc/passwd", "a" * 100_000, "+99:99", "Europe"])
def test_a_zone_that_is_none_is_refused_and_cut(zone: str) -> None:
    with pytest.raises(SeriesError, match=r"are of zone '.{1,90}, unknown here: write them in UTC\."):
        row_times(pa.array([0, 1], pa.timestamp("us", zone)), TABLE)

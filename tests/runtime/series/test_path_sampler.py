"""Drafted paths have the law of undrafted ones, whatever is drafted; passes are saved where drafts are near."""

from collections.abc import Callable

import numpy as np
import pytest

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.series import path_sampler
from reader_edge_runtime.series.analogs import Analogs
from reader_edge_runtime.series.coupling import Coupling, ExactCoupling
from reader_edge_runtime.series.outlook import Gaussian
from reader_edge_runtime.series.own_patches import OwnPatches
from reader_edge_runtime.series.path_sampler import ForecastStats, PathSampler
from reader_edge_runtime.series.paths import PatchDrafts
from reader_edge_runtime.series.prompt import Prompt
from reader_edge_runtime.series.small_model import SmallModel
from tests.runtime.series.laws import same_law
from tests.runtime.series.series_target import FakePatches, P

NUM, NUM_PATCHES = 20_000, 4
PAST = np.sin(np.arange(200) / 3.0) + 0.1 * np.cos(np.arange(200))

SOURCES: dict[str, Callable[[], PatchDrafts]] = {
    "own": lambda: OwnPatches(3),
    "model": lambda: SmallModel(FakePatches(weight=0.4, log_scale=-0.3, bends=0.1)),
    "analogs": lambda: Analogs(P),
}


class FixedLength:
    """Drafts as many as it can."""

    def choose(self, most: int) -> int:
        return most

    def settle(self, length: int, accepted: list[int], seconds: float) -> None:
        pass


class PublishedRule(ExactCoupling):
    """After a rejection it draws from the model again, not from the residual."""

    def replaced(
        self, bound: Gaussian, draft: Gaussian, patches: Float64Array, random: np.random.Generator
    ) -> Float64Array:
        return self.drawn(bound, random)


def _sample(
    drafts: PatchDrafts | None, num_paths: int, seed: int = 0, coupling: Coupling | None = None
) -> tuple[Float64Array, ForecastStats]:
    target, stats = FakePatches(), ForecastStats()
    prompt = Prompt.of(PAST, target.sizes, num_paths)
    sampler = PathSampler(target, drafts, coupling)
    paths = sampler.sample([prompt], NUM_PATCHES, np.random.default_rng(seed), stats)
    return paths.reshape(num_paths, -1), stats


@pytest.fixture
def _drafts_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_sampler, "DraftLength", lambda most: FixedLength())


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
def test_the_published_rule_changes_the_law(name: str, plain: Float64Array) -> None:
    paths, _ = _sample(SOURCES[name](), NUM, seed=2, coupling=PublishedRule())
    assert not same_law(paths, plain)


@pytest.mark.usefixtures("_drafts_most")
def test_drafts_of_the_very_model_need_a_pass_for_each_seven_patches() -> None:
    target, stats = FakePatches(), ForecastStats()
    sampler = PathSampler(target, SmallModel(FakePatches()))
    sampler.sample([Prompt.of(PAST, target.sizes, 3)], 15, np.random.default_rng(0), stats)
    assert stats.num_passes == 2
    assert stats.acceptance_rate == 1.0


def test_undrafted_paths_need_a_pass_for_each_patch_but_the_first() -> None:
    _, stats = _sample(None, 5)
    assert (stats.num_passes, stats.num_drafted, stats.acceptance_rate) == (NUM_PATCHES - 1, 0, 0.0)


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

"""What a model's maker recommends is how its answers are drawn where nobody says; without it, greedily."""

from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge_runtime import Engine, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.errors import ManifestError
from reader_edge_runtime.generation_config import chosen_sampling
from tests.reader_edge.package_copy import PackageCopy

OWN = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.05}
PROMPT = "# tar\n\n> "
OPEN = GenerationConfig(max_tokens=60, ignores_eos=True)


@pytest.fixture(scope="module")
def package(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> PackageCopy:
    return PackageCopy(demo_folder, tmp_path_factory.mktemp("sampled") / "package")


@pytest.fixture(scope="module")
def drawing(package: PackageCopy) -> Engine:
    package.change_manifest(sampling=OWN)
    return Engine.load(package.folder, EngineConfig(is_calibrated=False))


def test_an_answer_that_nobody_says_how_to_draw_goes_by_the_recommendation_and_tells_its_seed(drawing: Engine) -> None:
    answer = drawing.generate(PROMPT, OPEN)
    assert answer.sampling is not None
    assert answer.sampling == replace(SamplingConfig(**OWN), seed=answer.sampling.seed)  # type: ignore[arg-type]
    known = replace(OPEN, sampling=answer.sampling)
    for config in (known, replace(known, is_drafted=False)):
        assert drawing.generate(PROMPT, config).token_ids == answer.token_ids


def test_each_answer_has_a_seed_of_its_own(drawing: Engine) -> None:
    answers = drawing.generate_batch([PROMPT] * 4, OPEN)
    assert len({each.sampling.seed for each in answers if each.sampling}) == 4


def test_a_sampling_config_is_whole_and_leaves_nothing_to_the_model(drawing: Engine, engine: Engine) -> None:
    greedy = replace(OPEN, sampling=SamplingConfig())
    assert drawing.generate(PROMPT, greedy).token_ids == engine.generate(PROMPT, OPEN).token_ids


def test_a_package_that_recommends_nothing_is_greedy(engine: Engine) -> None:
    answer = engine.generate(PROMPT, OPEN)
    assert answer.sampling == SamplingConfig()
    assert str(answer.sampling) == "greedy"


def test_what_is_given_stands_beside_what_is_recommended() -> None:
    chosen = chosen_sampling(OWN, {"temperature": 0.3, "seed": 7})
    assert chosen == SamplingConfig(temperature=0.3, top_k=40, top_p=0.95, repetition_penalty=1.05, seed=7)
    assert str(chosen) == "repetition-penalty 1.05, temperature 0.3, top-k 40, top-p 0.95, seed 7"
    assert chosen_sampling(OWN, {"temperature": 0}) == SamplingConfig(top_k=40, top_p=0.95, repetition_penalty=1.05)
    assert len({chosen_sampling(OWN, {}).seed for _ in range(8)}) == 8
    assert chosen_sampling({}, {}) == SamplingConfig()


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": float("nan")},
        {"temperature": -1},
        {"temperature": "0.7"},
        {"temperature": True},
        {"top_k": 2.5},
        {"top_p": 1.5},
        {"min_p": float("inf")},
        {"repetition_penalty": 0},
        {"seed": 1},
        {"logit_bias": {"1": 100}},
        {"grammar": "a"},
        [0.7],
        "greedy",
        None,
    ],
)
def test_a_recommendation_that_cannot_be_meant_is_refused_when_a_package_is_opened(
    demo_folder: Path, tmp_path: Path, sampling: object
) -> None:
    spoilt = PackageCopy(demo_folder, tmp_path / "package")
    spoilt.change_manifest(sampling=sampling)
    with pytest.raises(ManifestError, match=r"unusable sampling|is not valid JSON"):
        Engine.load(spoilt.folder)

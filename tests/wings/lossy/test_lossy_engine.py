"""The engine of lossy answers: what it tells of them, and what keeps them apart from exact ones."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reader_edge.prompts import EvalPrompt
from reader_edge.verify.proof import prove
from reader_edge_lossy.relaxed import Relaxed
from reader_edge_runtime import (
    AsyncEngine,
    DraftSources,
    Engine,
    EngineConfig,
    GenerationConfig,
    Grammar,
    SamplingConfig,
)
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import ConfigError, ProofError, SessionError
from tests.conftest import make_as_new
from tests.random_drafter import SecondBest

CONFIG = GenerationConfig(max_tokens=120)
EVERYTHING = Relaxed(20.0, 20.0)


@pytest.fixture(scope="module")
def shared_lossy(demo_folder: Path) -> Engine:
    engine = Engine.load(demo_folder, EngineConfig(is_calibrated=False), rule=EVERYTHING)
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()
    return engine


@pytest.fixture
def lossy(shared_lossy: Engine) -> Iterator[Engine]:
    make_as_new(shared_lossy)
    yield shared_lossy
    shared_lossy.rule = EVERYTHING


def test_every_answer_tells_what_it_gave_up(lossy: Engine, engine: Engine, held_out_texts: list[str]) -> None:
    prompts = held_out_texts[:4]
    results = lossy.generate_batch([text[:300] for text in prompts], CONFIG)
    assert sum(int(str(result.deviation["num_changed"])) for result in results) > 0
    for result in results:
        assert result.deviation["rule"] == "relaxed"
        assert result.deviation["figures"] == {"gap": 20.0, "budget": 20.0}
        assert result.deviation["num_tokens"] == len(result.token_ids)
    *others, last = lossy.stream(prompts[0][:300], CONFIG)
    assert last.deviation
    assert not any(chunk.deviation for chunk in others)
    assert engine.generate(prompts[0][:300], CONFIG).deviation == {}


def test_without_strength_it_says_what_an_exact_engine_says(
    lossy: Engine, engine: Engine, held_out_texts: list[str]
) -> None:
    lossy.rule = Relaxed(0.0, 0.02)
    prompts = [text[:300] for text in held_out_texts[:3]]
    exact = engine.generate_batch(prompts, CONFIG)
    assert [each.token_ids for each in lossy.generate_batch(prompts, CONFIG)] == [each.token_ids for each in exact]


def test_answers_under_a_grammar_stay_valid(lossy: Engine) -> None:
    pytest.importorskip("llguidance", reason="the extra 'grammar' follows grammars")
    schema = json.dumps({"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 8, "maxItems": 8})
    for text in ("# tar", "red green blue red green blue", "['red', 'green']"):
        answer = lossy.generate(text, GenerationConfig(400, grammar=Grammar("json_schema", schema))).text
        assert set(json.loads(answer)) <= {"red", "green", "blue"}


def test_what_is_not_greedy_is_refused(lossy: Engine) -> None:
    for sampling in (SamplingConfig(temperature=0.5), SamplingConfig(repetition_penalty=1.1)):
        with pytest.raises(ConfigError, match="Lossy answers are greedy"):
            lossy.generate("# tar", GenerationConfig(sampling=sampling))
    cut = SamplingConfig(top_k=40, top_p=0.9, min_p=0.1, seed=7)  # of a distribution that nothing is drawn from
    found = [lossy.generate("# tar", GenerationConfig(4, sampling=each)) for each in (cut, SamplingConfig())]
    assert found[0].deviation
    assert found[0].token_ids == found[1].token_ids


def test_sessions_are_marked_and_neither_engine_takes_the_others(lossy: Engine, engine: Engine, tmp_path: Path) -> None:
    lossy.generate("# tar", CONFIG)
    lossy.save_session(tmp_path / "lossy", [{"role": "user", "content": "tar"}])
    engine.save_session(tmp_path / "exact")
    assert lossy.load_session(tmp_path / "lossy") == [{"role": "user", "content": "tar"}]
    with pytest.raises(SessionError, match="is a lossy session, which `run --rule` goes on with, and no exact"):
        engine.load_session(tmp_path / "lossy")
    with pytest.raises(
        SessionError, match="is a session of exact answers, which `run` goes on with, and no engine with a rule"
    ):
        lossy.load_session(tmp_path / "exact")


def test_no_history_file_hears_of_it(demo_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="A history file serves exact answers"):
        Engine.load(demo_folder, sources=DraftSources(history=tmp_path / "history"), rule=Relaxed())
    with pytest.raises(ConfigError, match=r"rule is 0\.5, but must be a RuleConfig"):
        Engine.load(demo_folder, rule=0.5)  # type: ignore[arg-type]


def test_an_exact_engine_takes_no_lossy_rule(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="'second best' may change answers"):
        engine.generate("# tar", GenerationConfig(acceptance=SecondBest()))


def test_a_proof_refuses_it_and_many_callers_may_share_it(lossy: Engine) -> None:
    with pytest.raises(ProofError, match="nothing to prove"):
        prove(lossy, [EvalPrompt("# tar")])

    async def served() -> object:
        async with AsyncEngine(lossy) as engine:
            return (await engine.generate("# tar", GenerationConfig(8))).deviation["rule"]

    assert asyncio.run(served()) == "relaxed"


def test_measured_pass_times_are_left_alone(lossy: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge_runtime.engine.forget_cost", lambda *_: pytest.fail("erased"))
    monkeypatch.setattr(lossy.decoder.planner.times, "take_outrun", lambda: True)
    lossy.generate("# tar", GenerationConfig(8))
    with lossy.working():
        lossy.release()  # from within a step, as finalised iterators do

"""A lossy engine, with each rule and without the wing."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reader_edge.prompts import EvalPrompt
from reader_edge.verify.proof import prove
from reader_edge_lossy.relaxed import Relaxed
from reader_edge_lossy.views import Views
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
from tests.conftest import ROOT, make_as_new
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


def test_without_strength_answers_are_exact(lossy: Engine, engine: Engine, held_out_texts: list[str]) -> None:
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


@pytest.fixture(scope="module")
def shared_views(demo_folder: Path) -> Engine:
    return Engine.load(demo_folder, EngineConfig(is_calibrated=False), rule=Views(64, 0.6))


@pytest.fixture
def views(shared_views: Engine) -> Engine:
    make_as_new(shared_views)
    return shared_views


@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(temperature=0.8, seed=5)])
def test_drafts_change_no_token(views: Engine, held_out_texts: list[str], sampling: SamplingConfig) -> None:
    prompts = [text[:900] for text in held_out_texts[:3]]
    drafted = views.generate_batch(prompts, GenerationConfig(60, sampling=sampling))
    views.forget()
    for prompt, each in zip(prompts, drafted, strict=True):
        plain = views.generate(prompt, GenerationConfig(60, sampling=sampling, is_drafted=False))
        assert plain.token_ids == each.token_ids
        assert plain.deviation["num_changed"] == each.deviation["num_changed"]
    assert sum(each.stats.num_steps for each in drafted) < 3 * 59


def test_without_weight_answers_are_exact(demo_folder: Path, engine: Engine, held_out_texts: list[str]) -> None:
    exact = Engine.load(demo_folder, EngineConfig(is_calibrated=False), rule=Views(64, 0.0))
    prompts = [text[:900] for text in held_out_texts[:3]]
    output = exact.generate_batch(prompts, GenerationConfig(60))
    assert [each.token_ids for each in output] == [
        each.token_ids for each in engine.generate_batch(prompts, GenerationConfig(60))
    ]
    assert not any(each.deviation["num_changed"] for each in output)


def test_a_session_goes_on_as_if_it_had_stayed(views: Engine, held_out_texts: list[str], tmp_path: Path) -> None:
    prompt = held_out_texts[0][:900]
    views.generate(prompt, GenerationConfig(30))
    views.save_session(tmp_path / "session")
    stayed = views.generate(prompt + "\n", GenerationConfig(30))
    assert views.load_session(tmp_path / "session") == []
    loaded = views.generate(prompt + "\n", GenerationConfig(30))
    assert loaded.token_ids == stayed.token_ids
    assert loaded.stats.num_reused_tokens == stayed.stats.num_reused_tokens > 0


def test_forms_and_stops_hold(views: Engine, held_out_texts: list[str]) -> None:
    pytest.importorskip("llguidance", reason="the extra 'grammar' follows grammars")
    schema = json.dumps({"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 4, "maxItems": 4})
    answer = views.generate(held_out_texts[0][:900], GenerationConfig(200, grammar=Grammar("json_schema", schema)))
    assert set(json.loads(answer.text)) <= {"red", "green"}
    free = views.generate(held_out_texts[1][:900], GenerationConfig(40))
    stop = free.text[10:14]
    stopped = views.generate(held_out_texts[1][:900], GenerationConfig(40, stop=(stop,)))
    assert stopped.text == free.text[: free.text.index(stop)]


def test_log_probabilities_of_a_prompt_are_refused(views: Engine) -> None:
    with pytest.raises(ConfigError, match="are those of one text, and views mix two: leave prompt_logprobs out"):
        views.generate("# tar", GenerationConfig(4, wants_prompt_logprobs=True))


# As if the folder were deleted: importing it fails.
_SCRIPT = """
import importlib, pkgutil, sys
sys.modules["reader_edge_lossy"] = None
import reader_edge, reader_edge_runtime
optional = {"zmq", "ray", "iree", "pydivsufsort", "matplotlib", "llguidance", "starlette", "uvicorn"}
num = 0
for package in (reader_edge_runtime, reader_edge):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name.endswith(("__main__", "_native")):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name.partition(".")[0] in optional, error
        num += 1
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
engine = Engine.load("models/demo/package", EngineConfig(is_calibrated=False, threads=1))
print(num, len(engine.generate("# tar", GenerationConfig(8)).token_ids))
"""


@pytest.mark.long
def test_everything_else_is_imported_and_answers_without_the_folder() -> None:
    path = {"PYTHONPATH": ":".join(str(ROOT / part) for part in (".", "runtime", "export"))}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        cwd=ROOT,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    num_modules, num_tokens = map(int, done.stdout.split())
    assert num_modules > 250
    assert num_tokens == 8

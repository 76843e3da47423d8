"""An engine of views: prompts of a model that runs, sampled answers, sessions, forms, and what is refused."""

import json
from pathlib import Path

import pytest

from reader_edge_lossy.views import Views
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.errors import ConfigError
from tests.conftest import make_as_new


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


def test_without_weight_it_says_what_an_exact_engine_says(
    demo_folder: Path, engine: Engine, held_out_texts: list[str]
) -> None:
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

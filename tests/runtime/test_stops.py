"""What ends an answer: stop strings, also of special tokens, and stop tokens; drafted, streamed, together and alone."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, GenerationConfig, GenerationResult, SamplingConfig
from reader_edge_runtime.errors import ConfigError
from tests.reader_edge.package_copy import PackageCopy

PROMPT = "# tar"
LONG = GenerationConfig(max_tokens=60, ignores_eos=True)
SAMPLED = replace(LONG, sampling=SamplingConfig(temperature=0.9, seed=4))
PLACE = 9  # of the answer's token that is made a special one


@pytest.fixture(scope="module")
def special_engine(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The demo, one token of whose greedy answer is special: it is in no text, and ends nothing by itself."""
    package = PackageCopy(demo_folder, tmp_path_factory.mktemp("special") / "package")
    config = EngineConfig(is_calibrated=False, is_probed=False)
    answer = Engine.load(demo_folder, config).generate(PROMPT, LONG).token_ids
    place = next(i for i in range(PLACE, len(answer)) if answer[i] not in answer[:i])
    tokenizer = json.loads((package.folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    (spelled,) = [text for text, token_id in vocabulary.items() if token_id == answer[place]]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"].append({"id": answer[place], "content": spelled, **flags})
    package.write_file("tokenizer.json", json.dumps(tokenizer).encode())
    engine = Engine.load(package.folder, config)
    engine.decoder.drafter.wait()  # type: ignore[attr-defined]
    return engine


def everywhere(engine: Engine, config: GenerationConfig) -> GenerationResult:
    """An answer that is the same drafted and plain, in a stream, in a batch and from an event loop."""
    result = engine.generate(PROMPT, config)
    plain = engine.generate(PROMPT, replace(config, is_drafted=False))
    together = engine.generate_batch([PROMPT, "# git commit", PROMPT], [config, LONG, config])
    chunks = list(engine.stream(PROMPT, config))

    async def ask() -> GenerationResult:
        async with AsyncEngine(engine) as served:
            return await served.generate(PROMPT, config)

    for other in (plain, together[0], together[2], GenerationResult.of_chunks(chunks), asyncio.run(ask())):
        assert (other.token_ids, other.text, other.finish_reason) == (result.token_ids, result.text, "stop")
    return result


def special_token(engine: Engine) -> tuple[str, int]:
    """The token that was made special, and its place in the answer."""
    answer = engine.generate(PROMPT, LONG).token_ids
    place = next(i for i, token_id in enumerate(answer) if engine.tokenizer.token(token_id) is None)
    return engine.tokenizer.token_bytes(answer[place]).decode(), place


def test_a_stop_that_is_a_special_token_ends_the_answer_there(special_engine: Engine) -> None:
    whole = special_engine.generate(PROMPT, LONG)
    stop, place = special_token(special_engine)
    result = everywhere(special_engine, replace(LONG, stop=(stop,)))
    assert result.token_ids == whole.token_ids[: place + 1]
    assert result.text == special_engine.tokenizer.decode(whole.token_ids[:place])


def test_a_stop_of_a_special_token_during_text_ends_the_text_before_it(special_engine: Engine) -> None:
    whole = special_engine.generate(PROMPT, LONG).token_ids
    stop, place = special_token(special_engine)
    before, behind = (special_engine.tokenizer.decode([whole[place + step]]) for step in (-1, 1))
    result = everywhere(special_engine, replace(LONG, stop=(f"{before}{stop}{behind}",)))
    assert result.token_ids == whole[: place + 2]
    assert result.text == special_engine.tokenizer.decode(whole[: place - 1])


@pytest.mark.parametrize("config", [LONG, SAMPLED], ids=["greedy", "sampled"])
def test_a_stop_token_ends_the_answer_and_the_text_before_it(engine: Engine, config: GenerationConfig) -> None:
    whole = engine.generate(PROMPT, config).token_ids
    place = next(i for i in range(PLACE, len(whole)) if whole[i] not in whole[:i])
    result = everywhere(engine, replace(config, stop_token_ids=(whole[place],)))
    assert result.token_ids == whole[: place + 1]
    assert result.text == engine.tokenizer.decode(whole[:place])


def test_a_stop_of_one_token_ends_the_answer_at_that_token(engine: Engine) -> None:
    whole = engine.generate(PROMPT, LONG).token_ids
    texts = [engine.tokenizer.decode([token_id]) for token_id in whole]
    place = next(i for i in range(PLACE, len(whole)) if texts[i].strip() and texts[i] not in "".join(texts[:i]))
    result = everywhere(engine, replace(LONG, stop=(texts[place],)))
    assert result.token_ids == whole[: place + 1]
    assert result.text == "".join(texts[:place])


def test_an_end_token_of_the_model_is_in_no_text_special_or_not(demo_folder: Path, tmp_path: Path) -> None:
    config = EngineConfig(is_calibrated=False, is_probed=False)
    whole = Engine.load(demo_folder, config).generate(PROMPT, LONG).token_ids
    place = next(i for i in range(PLACE, len(whole)) if whole[i] not in whole[:i])
    package = PackageCopy(demo_folder, tmp_path / "package")
    package.change_manifest(eos_token_ids=[whole[place]])
    result = Engine.load(package.folder, config).generate(PROMPT, GenerationConfig(max_tokens=60))
    assert (result.token_ids, result.finish_reason) == (whole[: place + 1], "stop")
    assert result.text == "".join(Engine.load(demo_folder, config).tokenizer.decode(whole[:place]))


def test_a_session_goes_on_behind_an_answer_that_a_stop_ended(special_engine: Engine, tmp_path: Path) -> None:
    special_engine.forget()
    stop, place = special_token(special_engine)
    config = replace(LONG, stop=(stop,))
    special_engine.generate(PROMPT, config)
    special_engine.save_session(tmp_path / "session")
    special_engine.load_session(tmp_path / "session")
    again = special_engine.generate(PROMPT, config)
    assert (len(again.token_ids), again.finish_reason) == (place + 1, "stop")
    assert again.stats.num_reused_tokens > 0


def test_a_stop_token_that_the_vocabulary_lacks_is_refused(engine: Engine) -> None:
    size = engine.package.manifest.vocab_size
    with pytest.raises(
        ConfigError, match=rf"^stop_token_ids names token {size}, but the vocabulary has {size}: name ids"
    ):
        engine.generate(PROMPT, GenerationConfig(stop_token_ids=(size,)))

"""The engine on the demo model: drafted equals plain however it is used, also by the maker's own sampling."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reader_edge_runtime import DraftSources, Engine, EngineConfig, GenerationConfig, GenerationStats, SamplingConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.history_file import HistoryFile
from reader_edge_runtime.errors import BusyError, ConfigError, ManifestError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.generation_config import chosen_sampling
from reader_edge_runtime.machine import processor
from tests.reader_edge.package_copy import PackageCopy

GREEDY = GenerationConfig(max_tokens=60, ignores_eos=True)
SAMPLED = replace(GREEDY, sampling=SamplingConfig(temperature=0.8, top_p=0.95, seed=5))


@pytest.mark.parametrize("config", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_drafted_is_plain_on_held_out_texts(
    engine: Engine, held_out_texts: list[str], config: GenerationConfig
) -> None:
    num_accepted = 0
    for text in held_out_texts[::8]:
        prompt = text[:300]
        drafted = engine.generate(prompt, config)
        plain = engine.generate(prompt, replace(config, is_drafted=False))
        assert drafted.token_ids == plain.token_ids
        assert plain.stats.num_drafted_tokens == 0
        num_accepted += drafted.stats.num_accepted_tokens
    assert num_accepted > 0


def test_batch_equals_one_by_one(engine: Engine, held_out_texts: list[str]) -> None:
    prompts = [text[: 40 * (1 + i % 7)] for i, text in enumerate(held_out_texts[:11])]
    configs = [replace(SAMPLED if i % 2 else GREEDY, max_tokens=20 + 5 * i) for i in range(len(prompts))]
    together = engine.generate_batch(prompts, configs)
    engine.forget()
    alone = [engine.generate(prompt, config) for prompt, config in zip(prompts, configs, strict=True)]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    assert [answer.text for answer in together] == [answer.text for answer in alone]


def test_stream_equals_generate_and_ends_with_statistics(engine: Engine) -> None:
    whole = engine.generate("# tar", GREEDY)
    engine.forget()
    chunks = list(engine.stream("# tar", GREEDY))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert sum((chunk.token_ids for chunk in chunks), ()) == whole.token_ids
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == "length"
    assert chunks[-1].stats is not None
    assert chunks[-1].stats.num_tokens == 60


def test_a_stream_tells_how_much_of_its_prompt_is_read(engine: Engine, held_out_texts: list[str]) -> None:
    calls: list[tuple[int, int]] = []
    chunks = list(engine.stream(held_out_texts[0], GREEDY, lambda *each: calls.append(each)))
    num_tokens = len(engine.encode_prompt(held_out_texts[0]))
    assert calls == sorted(set(calls))
    assert {total for _, total in calls} == {calls[-1][0]} == {num_tokens}
    engine.forget()
    assert "".join(chunk.text for chunk in chunks) == engine.generate(held_out_texts[0], GREEDY).text
    with pytest.raises(IndexError):
        list(engine.stream("# tar", GREEDY, lambda done, _: [][done]))
    with pytest.raises(ConfigError, match="on_progress is 3, but must be a function"):
        engine.stream("# tar", GREEDY, 3)  # type: ignore[arg-type]


def test_stream_closed_early_leaves_a_right_cache(engine: Engine) -> None:
    stream = engine.stream("# tar", GREEDY)
    first = next(stream)
    second = next(stream)
    del stream
    prompt = "# tar" + first.text + second.text
    after_close = engine.generate(prompt, GREEDY)
    assert after_close.stats.num_reused_tokens > 0
    engine.forget()
    assert engine.generate(prompt, GREEDY).token_ids == after_close.token_ids


def test_second_request_reuses_a_shared_prefix_with_the_same_answer(engine: Engine, held_out_texts: list[str]) -> None:
    start = held_out_texts[0][:400]
    engine.generate(start, GREEDY)
    again = engine.generate(start + " And then", GREEDY)
    assert again.stats.num_reused_tokens > 50
    engine.forget()
    fresh = engine.generate(start + " And then", GREEDY)
    assert fresh.stats.num_reused_tokens == 0
    assert fresh.token_ids == again.token_ids


def test_cache_after_drafted_commits_equals_a_fresh_prefill(engine: Engine) -> None:
    answer = engine.generate("# git commit", GREEDY)
    prompt = engine.encode_prompt("# git commit")
    length = len(prompt) + len(answer.token_ids) - 1
    cache = engine.decoder.cache
    assert isinstance(cache, HostCache)
    decoded = cache.slab[:, 0, :, :length].copy()
    engine.forget()
    follow_up = engine.decoder.submit([*prompt, *answer.token_ids], GenerationConfig(max_tokens=1))
    engine.decoder.finish(follow_up)
    np.testing.assert_array_equal(cache.slab[:, 0, :, :length], decoded)


def test_prefill_in_chunks_of_any_size_gives_the_same_answer(demo_folder: Path, held_out_texts: list[str]) -> None:
    answers = set()
    for chunk in (1, 7, 64, 1024):
        engine = Engine.load(demo_folder, EngineConfig(prefill_chunk=chunk, is_calibrated=False, is_probed=False))
        answers.add(engine.generate(held_out_texts[1][:500], GREEDY).token_ids)
    assert len(answers) == 1


@pytest.mark.usefixtures("two_cores")
def test_one_and_two_threads_give_the_same_answer(demo_folder: Path) -> None:
    configs = [EngineConfig(threads=threads, is_calibrated=False, is_probed=False) for threads in (1, 2)]
    answers = {Engine.load(demo_folder, config).generate("# curl", GREEDY).token_ids for config in configs}
    assert len(answers) == 1


def test_more_threads_than_cores_are_cut_with_a_warning(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "num_usable_cores", lambda: 1)
    few, many = (EngineConfig(threads=threads, is_calibrated=False, is_probed=False) for threads in (1, 400))
    expected = Engine.load(demo_folder, few).generate("# curl", GREEDY).token_ids
    with pytest.warns(UserWarning, match=r"^400 threads would wait .* on the 1 core .*: 1 will compute\.$"):
        engine = Engine.load(demo_folder, many)
    assert engine.generate("# curl", GREEDY).token_ids == expected


def test_same_seed_same_text_other_seed_other_text(engine: Engine) -> None:
    sampled = [
        engine.generate("# curl", replace(GREEDY, sampling=SamplingConfig(temperature=1.0, seed=seed))).token_ids
        for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]


def test_a_question_during_a_step_of_the_same_thread_is_refused_and_does_not_wait_for_itself(engine: Engine) -> None:
    with engine.working(), pytest.raises(BusyError, match="inside a step"):
        engine.generate("# tar", GREEDY)
    assert engine.generate("# tar", GREEDY).token_ids == engine.generate("# tar", GREEDY).token_ids


def test_width_probe_finds_the_exact_package_invariant(shared_engine: Engine) -> None:
    report = shared_engine.width_report
    assert report is not None
    assert report.num_rows >= 16
    assert report.is_invariant


def test_history_file_lets_the_next_run_draft_from_past_answers(demo_folder: Path, tmp_path: Path) -> None:
    def answer() -> GenerationStats:
        sources = DraftSources(history=tmp_path / "history")
        engine = Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_probed=False), sources=sources)
        assert isinstance(engine.decoder.drafter, RetrievalDrafter)
        engine.decoder.drafter.wait()
        return engine.generate("# tar", GREEDY).stats

    first, second = answer(), answer()
    assert first.accepted_by_source["history"] == 0
    assert second.accepted_by_source["history"] > 0
    assert second.num_steps < first.num_steps


def test_files_of_a_workspace_are_drafted_from_and_change_no_answer(
    demo_folder: Path, tmp_path: Path, shared_engine: Engine
) -> None:
    plain = shared_engine.generate("# tar", GREEDY, is_drafted=False)
    (tmp_path / "tar.md").write_text(f"# tar\n{plain.text}", "utf-8")
    config, sources = EngineConfig(is_calibrated=False, is_probed=False), DraftSources(workspace=tmp_path)
    with Engine.load(demo_folder, config, sources=sources) as engine:
        drafter = engine.decoder.drafter
        assert isinstance(drafter, RetrievalDrafter)
        drafter.wait()
        drafted = engine.generate("# tar", GREEDY)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.accepted_by_source["workspace"] > 0


def test_a_full_disk_costs_no_answer(demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.load(
        demo_folder,
        EngineConfig(is_calibrated=False, is_probed=False),
        sources=DraftSources(history=tmp_path / "history"),
    )

    def full(file: HistoryFile, record: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(HistoryFile, "_append", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert len(engine.generate("# tar", GREEDY).token_ids) == 60


def test_an_answer_that_was_not_scored_has_no_perplexity(engine: Engine) -> None:
    unscored, scored = (
        engine.generate("# tar", max_tokens=4, is_scored=is_scored).stats for is_scored in (False, True)
    )
    assert (unscored.log_probability, unscored.perplexity) == (None, None)
    assert scored.perplexity is not None
    assert scored.perplexity > 1
    assert GenerationStats.total([scored, scored]).perplexity == pytest.approx(scored.perplexity)
    assert GenerationStats.total([scored, unscored]).perplexity is None
    assert GenerationStats.total([]).perplexity is None


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


def test_a_sampling_config_is_whole_and_seeds_are_each_answer_s_own(drawing: Engine, engine: Engine) -> None:
    greedy = replace(OPEN, sampling=SamplingConfig())
    assert drawing.generate(PROMPT, greedy).token_ids == engine.generate(PROMPT, OPEN).token_ids
    answers = drawing.generate_batch([PROMPT] * 4, OPEN)
    assert len({each.sampling.seed for each in answers if each.sampling}) == 4


def test_what_is_recommended_stands_beside_what_is_given_and_over_greed(engine: Engine) -> None:
    chosen = chosen_sampling(OWN, {"temperature": 0.3, "seed": 7})
    assert chosen == SamplingConfig(temperature=0.3, top_k=40, top_p=0.95, repetition_penalty=1.05, seed=7)
    assert str(chosen) == "repetition-penalty 1.05, temperature 0.3, top-k 40, top-p 0.95, seed 7"
    assert chosen_sampling(OWN, {"temperature": 0}) == SamplingConfig(top_k=40, top_p=0.95, repetition_penalty=1.05)
    assert len({chosen_sampling(OWN, {}).seed for _ in range(8)}) == 8
    assert chosen_sampling({}, {}) == SamplingConfig()
    answer = engine.generate(PROMPT, OPEN)
    assert answer.sampling == SamplingConfig()
    assert str(answer.sampling) == "greedy"
    assert engine.encode_prompt(list(np.array([5, 6]))) == [5, 6]


@pytest.mark.parametrize(
    "sampling",
    [
        *({"temperature": float("nan")}, {"temperature": -1}, {"top_p": 1.5}, {"repetition_penalty": 0}, {"seed": 1}),
        *({"grammar": "a"}, [0.7], "greedy", None),
    ],
)
def test_a_recommendation_that_cannot_be_meant_is_refused(demo_folder: Path, tmp_path: Path, sampling: object) -> None:
    spoilt = PackageCopy(demo_folder, tmp_path / "package")
    spoilt.change_manifest(sampling=sampling)
    with pytest.raises(ManifestError, match=r"unusable sampling|is not valid JSON"):
        Engine.load(spoilt.folder)

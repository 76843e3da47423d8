"""Whether requests may draft is settled once: by what was wanted, what the package promises, what the probe found."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge_runtime import (
    AsyncEngine,
    DraftConfig,
    Engine,
    EngineConfig,
    GenerationConfig,
    GenerationStats,
    Grammar,
    SamplingConfig,
    assembly,
)
from reader_edge_runtime.assembly import make_decoder, make_trial_decoder
from reader_edge_runtime.decoding.draft_permission import (
    GUARDED,
    INEXACT,
    INVARIANT,
    UNCHECKED,
    UNSOUND,
    UNWANTED,
    DraftPermission,
    draft_permission,
)
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.drafting.drafter import DraftRequest, NoDrafter, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import ConfigError, DraftError
from reader_edge_runtime.measuring.width_probe import WidthReport
from tests.fake_target import FakeTarget, make_manifest

SOUND, APART = WidthReport(16, 16, 0.0), WidthReport(16, 4, 1e-5)
GREEDY = GenerationConfig(max_tokens=40, ignores_eos=True)
SAMPLED = replace(GREEDY, sampling=SamplingConfig(temperature=0.7, seed=2))


@pytest.mark.parametrize(
    ("config", "attention", "report", "wanted"),
    [
        (EngineConfig(), "exact", None, UNCHECKED),
        (EngineConfig(), "exact", SOUND, INVARIANT),
        (EngineConfig(is_near_tie_guarded=True), "exact", SOUND, INVARIANT),
        (EngineConfig(), "exact", APART, UNSOUND),
        (EngineConfig(), "fast", APART, INEXACT),
        (EngineConfig(is_near_tie_guarded=True), "exact", APART, GUARDED),
        (EngineConfig(is_near_tie_guarded=True), "fast", APART, GUARDED),
        (EngineConfig(is_drafted=False), "exact", SOUND, UNWANTED),
        (EngineConfig(is_drafted=False, is_near_tie_guarded=True), "exact", APART, UNWANTED),
    ],
)
def test_what_is_wanted_promised_and_found_decides(
    config: EngineConfig, attention: str, report: WidthReport | None, wanted: DraftPermission
) -> None:
    assert draft_permission(config, attention, report) == wanted


def test_nobody_can_change_it_later_or_begin_without_a_drafter() -> None:
    decoder = make_decoder(FakeTarget(make_manifest()), NoDrafter(), EngineConfig(), report=APART)
    assert decoder.permission == UNSOUND
    with pytest.raises(AttributeError):
        decoder.permission = INVARIANT  # type: ignore[misc]
    with pytest.raises(AttributeError):
        decoder.permission.scope = "all"  # type: ignore[misc]
    with pytest.raises(DraftError, match=r"^This engine decodes plainly"):
        NoDrafter().begin(RequestContext([1]))
    [drafted] = NoDrafter().draft([DraftRequest(RequestDrafter(RequestContext([1])), 8, 4)])
    assert isinstance(drafted, DraftError)


def test_trials_draft_what_was_forbidden_and_no_engine_takes_them(shared_engine: Engine) -> None:
    drafter = RetrievalDrafter(DraftConfig()).wait()
    decoder = make_trial_decoder(shared_engine.decoder.target, drafter, EngineConfig(), Planner(), APART)
    assert (decoder.permission.is_trial, decoder.permission.scope) == (True, "all")
    with pytest.raises(ConfigError, match=r"^A trial decoder drafts whatever the probe found"):
        Engine(shared_engine.package, shared_engine.tokenizer, decoder)
    config = EngineConfig(is_near_tie_guarded=True)
    decoder = make_trial_decoder(FakeTarget(make_manifest()), NoDrafter(), config, Planner(), APART)
    assert decoder.permission == replace(GUARDED, is_trial=True)


@pytest.fixture
def load(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[EngineConfig], Engine]:
    """Load the demo on a machine whose probe fails."""
    monkeypatch.setattr(assembly, "load_or_settle", lambda target, *_: (target, APART))

    def load_engine(config: EngineConfig) -> Engine:
        engine = Engine.load(demo_folder, config)
        if isinstance(engine.decoder.drafter, RetrievalDrafter):
            engine.decoder.drafter.wait()
        return engine

    return load_engine


Load = Callable[[EngineConfig], Engine]


@pytest.fixture
def answers(shared_engine: Engine) -> list[tuple[int, ...]]:
    """Plain ones, greedy and sampled."""
    return [shared_engine.generate("# tar", replace(each, is_drafted=False)).token_ids for each in (GREEDY, SAMPLED)]


@pytest.mark.parametrize("config", [EngineConfig(), EngineConfig(is_drafted=False)], ids=["unsound", "unwanted"])
def test_every_door_gives_plain_answers(
    load: Load, answers: list[tuple[int, ...]], config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "load_or_measure", lambda *_, **__: pytest.fail("measured"))
    engine = load(config)
    results = engine.generate_batch(["# tar", "# tar"], [GREEDY, SAMPLED])
    assert [each.token_ids for each in results] == answers
    chunks = list(engine.stream("# tar", replace(GREEDY, prediction="# tar\n\n> Archiving utility.")))
    assert sum((chunk.token_ids for chunk in chunks), ()) == answers[0]
    engine.save_session(tmp_path / "session")
    engine.load_session(tmp_path / "session")
    after = engine.generate("# tar", GREEDY)

    async def ask() -> tuple[tuple[int, ...], GenerationStats]:
        async with AsyncEngine(engine) as served:
            result = await served.generate("# tar", SAMPLED)
            return result.token_ids, result.stats

    token_ids, stats = asyncio.run(ask())
    assert [after.token_ids, token_ids] == answers
    for each in (results[0].stats, results[1].stats, chunks[-1].stats, after.stats, stats):
        assert each is not None
        assert (each.num_drafted_tokens, set(each.steps_by_width)) == (0, {1})


def test_what_a_session_learned_outlives_a_plain_engine(demo_folder: Path, load: Load, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    drafting = Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_probed=False))
    drafting.decoder.drafter.wait()  # type: ignore[attr-defined]
    drafting.generate("# tar", GREEDY)
    drafting.save_session(first)
    plain = load(EngineConfig())
    plain.load_session(first)
    plain.save_session(second)
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize(
    ("config", "is_drafted"),
    [
        (GREEDY, True),
        (replace(GREEDY, wants_logprobs=True), True),
        (SAMPLED, False),
        (replace(GREEDY, sampling=SamplingConfig(repetition_penalty=1.1)), False),
        (replace(GREEDY, sampling=SamplingConfig(frequency_penalty=0.1)), False),
        (replace(GREEDY, sampling=SamplingConfig(logit_bias={5: 1.0})), False),
    ],
)
def test_a_guarded_engine_drafts_where_it_sees_near_ties(
    load: Load, config: GenerationConfig, is_drafted: bool
) -> None:
    """The guard looks at the two best logits: what chooses otherwise is decoded plainly."""
    engine = load(EngineConfig(is_near_tie_guarded=True, is_calibrated=False))
    result = engine.generate("# tar", config)
    assert result.token_ids == engine.generate("# tar", replace(config, is_drafted=False)).token_ids
    assert (result.stats.num_drafted_tokens > 0) == is_drafted


def test_a_guarded_engine_decodes_grammars_plainly(load: Load) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    engine = load(EngineConfig(is_near_tie_guarded=True, is_calibrated=False))
    result = engine.generate("# tar", replace(GREEDY, grammar=Grammar("regex", "(abc ){12}")))
    assert result.text == "abc " * 12
    assert result.stats.num_drafted_tokens == 0

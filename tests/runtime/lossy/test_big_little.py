"""Big-little decoding: what stays is likely enough by the model itself; chains end where the small one is unsure."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from reader_edge_runtime import Engine
from reader_edge_runtime.config import EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.drafting.draft_sources import DraftSources
from reader_edge_runtime.drafting.drafter import RequestContext
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.draft_model import DraftModel
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.drafting.sources.speculator.step_times import WIDTHS, StepTimes
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.lossy.big_little import BigLittle
from reader_edge_runtime.lossy.lossy_engine import LossyEngine
from reader_edge_runtime.lossy.sure_chains import SureModelSource, SureSpeculatorSource
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.speculator_part import SPECULATOR_AGREEMENT
from tests.fake_speculator import FakeSpeculator
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, make_decoder, reference
from tests.reader_edge.package_copy import PackageCopy
from tests.runtime.drafting.sources.drafting_target import DraftingTarget, chain_of, draft_request_of
from tests.runtime.drafting.sources.speculator.asked_speculator import asked, begun, greedy, speculator_of

VOCAB_SIZE = 8
ENDS = (5,)
MANIFEST = make_manifest(VOCAB_SIZE, max_context=4096, eos_token_ids=ENDS)
TARGET = FakeTarget(MANIFEST)


def decoded(strength: BigLittle, num_tokens: int) -> Request:
    decoder = make_decoder(MANIFEST, RandomDrafter(VOCAB_SIZE, 16, seed=2))
    request = decoder.submit(
        [1, 2], GenerationConfig(num_tokens, acceptance=strength.rule(ENDS, None), ignores_eos=True)
    )
    decoder.finish(request)
    return request


def test_what_is_not_the_models_choice_has_the_probability_that_was_asked_for() -> None:
    request = decoded(BigLittle(distance=2.0), 2000)
    text, changed, num_ends = request.token_ids[: request.num_prompt_tokens], [], 0
    for token_id in request.output_token_ids:
        logits = TARGET.logits_after(text).astype(np.float64)
        distances = np.log(np.exp(logits - logits.max()).sum()) - (logits - logits.max())
        own = int(logits.argmax())
        if token_id != own:
            changed.append(float(distances[token_id]))
            assert own not in ENDS
            assert token_id not in ENDS
        num_ends += token_id in ENDS
        text.append(token_id)
    assert min(changed) > 0
    assert max(changed) <= 2.0 + 1e-6
    assert len(changed) > 100
    assert num_ends > 20


def test_at_distance_zero_the_tokens_are_those_of_exact_decoding() -> None:
    assert decoded(BigLittle(distance=0.0), 300).output_token_ids == reference(MANIFEST, [1, 2], GenerationConfig(300))


def test_a_chain_ends_behind_the_first_token_that_the_small_model_is_unsure_of() -> None:
    small = DraftingTarget(sharpness=2.0)
    text = [1, 2, 3, 4]

    def length(confidence: float) -> int:
        source = SureModelSource(confidence, DraftModel(small, 4), 6)
        request = source.begin(RequestContext(text))
        [proposal] = source.propose([draft_request_of(request, max_depth=6)])
        return len(chain_of(proposal))

    assert length(0.0) == 6
    assert length(1.0) == 1
    written, sure = list(text), []
    for _ in range(6):
        logits = small.logits_after(written)
        sure.append(float(np.exp(logits - logits.max()).sum() ** -1))
        written.append(int(logits.argmax()))
    middle = sorted(sure)[2]
    expected = next(i for i, probability in enumerate(sure, start=1) if probability < middle or i == 6)
    assert length(middle - 1e-6) == expected


def test_a_draft_model_is_asked_and_writes_on_only_where_that_pays() -> None:
    source = SureModelSource(0.0, DraftModel(DraftingTarget(sharpness=2.0), 4), 6)
    source.worth.learn_pass = lambda seconds, num_tokens: None  # type: ignore[method-assign]
    source.worth.step_s = 2e-3
    request = source.begin(RequestContext([1, 2, 3, 4]))

    def length(token_s: float) -> int:
        draft_request = draft_request_of(request, max_depth=6, token_s=token_s)
        [proposal] = source.propose([draft_request])
        assert source.is_costly  # so that its time is not the others'
        return len(chain_of(proposal)) if source.is_worth_asking(draft_request, 0.0) else 0

    assert length(0.0) == 6  # nothing was measured
    assert length(1.0) == 6
    assert 1 <= length(5e-3) < 6
    assert length(1e-3) == 0


def test_an_engine_drafts_with_the_small_model_that_it_is_given(demo_folder: Path, tmp_path: Path) -> None:
    small = PackageCopy(demo_folder, tmp_path / "small")
    small.write_file("model.onnx", (small.folder / "model.onnx").read_bytes() + b"\x32\x05small")  # its doc_string
    strength = BigLittle(distance=2.0, confidence=0.0)
    sources = DraftSources(draft_model=small.folder)
    engine = LossyEngine.load(demo_folder, EngineConfig(is_calibrated=False), sources=sources, strength=strength)
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()
    result = engine.generate("# tar", GenerationConfig(40, ignores_eos=True))
    assert result.stats.drafted_by_source["draft model"] > 0
    assert result.given_up["rule"] == "big-little"
    with pytest.raises(ConfigError, match="A head writes no chains"):
        LossyEngine.load(demo_folder, sources=DraftSources(head="a.head"), strength=strength)
    undrafted = LossyEngine.load(demo_folder, EngineConfig(is_drafted=False), sources=sources, strength=strength)
    assert undrafted.generate("# tar", GenerationConfig(4)).given_up["num_changed"] == 0


def sure_length(confidence: float, max_nodes: int = 16, token_s: float = 0.0) -> tuple[int, FakeSpeculator]:
    """Tokens of the chain that a speculator writes behind a text, and the speculator. Its passes take 1 ms."""
    speculator = speculator_of(sharpness=2.0)
    source = SureSpeculatorSource(confidence, speculator, (0,), 6, 4)
    source.times = StepTimes([1e-3] * len(WIDTHS))
    source.times.learn = lambda num_nodes, seconds: None  # type: ignore[method-assign]
    speculator.num_stepped.clear()
    request = begun(source, [1, 2, 3, 4])
    [tree] = source.propose([asked(request, 6, token_s)._replace(max_nodes=max_nodes)])
    assert tree is not None
    length = node = 0
    while node := tree.child(node, greedy(speculator._target, [1, 2, 3, 4], length + 1)[-1]):
        if node < 0:
            break
        length += 1
    return length, speculator


def test_a_speculator_writes_on_as_a_draft_model_does() -> None:
    length, speculator = sure_length(0.0)
    assert length == 6
    assert speculator.num_stepped == [[1]] * 5  # each token but the last is scored, alone
    assert sure_length(0.0, max_nodes=4)[0] == 3
    length, speculator = sure_length(1.0)
    assert (length, speculator.num_stepped) == (1, [])
    assert 1 < sure_length(0.5)[0] <= 6


def test_a_speculators_chain_ends_where_a_further_pass_takes_longer_than_it_saves() -> None:
    assert sure_length(0.0, token_s=1.0)[0] == 6
    assert 1 < sure_length(0.0, token_s=5e-3)[0] < 6
    assert sure_length(0.0, token_s=0.5e-3)[0] == 1


def test_a_speculator_is_asked_only_where_its_chains_pay_and_its_time_is_not_the_others() -> None:
    source = SureSpeculatorSource(0.0, speculator_of(), (0,), 6, 4, agreement=0.5)
    assert source.is_costly
    assert source.wants_gain
    source.times, source.gain.seconds = StepTimes([1e-3] * len(WIDTHS)), 2e-3
    request = begun(source, [1, 2, 3, 4])
    assert source.gain.gain(0.0) == 0.5
    assert source.is_worth_asking(asked(request, token_s=5e-3), 0.0)
    assert not source.is_worth_asking(asked(request, token_s=3e-3), 0.0)
    assert source.is_worth_asking(asked(request), 0.0)  # nothing was measured


def test_a_speculator_that_names_nothing_more_ends_its_chain() -> None:
    speculator = speculator_of()
    source = SureSpeculatorSource(0.0, speculator, (0,), 6, 4)
    request = begun(source, [1, 2, 3, 4])
    speculator.num_stepped.clear()
    speculator.odd = (9, 0.5)  # no token of the target
    [tree] = source.propose([asked(request)])
    assert tree is not None
    assert len(tree) == 1
    assert speculator.num_stepped == []


def test_the_packages_speculator_is_the_small_model_where_no_other_is_given(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    speculator = speculator_of()
    manifest = engine.package.manifest
    checks = {**manifest.checks, SPECULATOR_AGREEMENT: 0.3}
    manifest = replace(manifest, speculator=speculator.part, state_ids=(0,), checks=checks)
    package = cast(ModelPackage, SimpleNamespace(manifest=manifest))
    monkeypatch.setattr("reader_edge_runtime.lossy.big_little.open_speculator", lambda *_: speculator)

    def opened(given: DraftSources) -> list[DraftSource]:
        return BigLittle(confidence=0.3).open_sources(given, package, engine.tokenizer, TARGET, EngineConfig())

    [source] = opened(DraftSources())
    assert isinstance(source, SureSpeculatorSource)
    assert source.gain.gain(0.0) == 0.3  # what its export found
    assert not source.can_pay(1e-9)  # then it is left alone, as in exact decoding
    assert opened(DraftSources(has_speculator=False)) == []


def test_strengths_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"confidence is 1\.5, but must be from 0 to 1"):
        BigLittle(confidence=1.5)

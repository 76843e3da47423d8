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
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.lossy.big_little import BigLittle
from reader_edge_runtime.lossy.lossy_engine import LossyEngine
from reader_edge_runtime.lossy.sure_chains import SureModelSource, SureSpeculatorSource
from reader_edge_runtime.package.model_package import ModelPackage
from tests.fake_speculator import FakeSpeculator
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, make_decoder, reference
from tests.reader_edge.package_copy import PackageCopy
from tests.runtime.drafting.sources.speculator.test_speculator_source import asked, begun, greedy, speculator_of
from tests.runtime.drafting.sources.test_draft_model_source import DraftingTarget, chain_of, draft_request_of

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
        [proposal] = source.propose([draft_request_of(request, max_depth=6, token_s=1e-9)])
        return len(chain_of(proposal))

    assert length(0.0) == 6  # whatever it takes
    assert length(1.0) == 1
    written, sure = list(text), []
    for _ in range(6):
        logits = small.logits_after(written)
        sure.append(float(np.exp(logits - logits.max()).sum() ** -1))
        written.append(int(logits.argmax()))
    middle = sorted(sure)[2]
    expected = next(i for i, probability in enumerate(sure, start=1) if probability < middle or i == 6)
    assert length(middle - 1e-6) == expected


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
    undrafted = LossyEngine.load(demo_folder, EngineConfig(is_drafted=False), sources=sources, strength=strength)
    assert undrafted.generate("# tar", GenerationConfig(4)).given_up["num_changed"] == 0


def sure_length(confidence: float, max_nodes: int = 16) -> tuple[int, FakeSpeculator]:
    """Tokens of the chain that a speculator writes behind a text, and the speculator."""
    speculator = speculator_of(sharpness=2.0)
    source = SureSpeculatorSource(confidence, speculator, (0,), 6, 4)
    speculator.num_stepped.clear()
    request = begun(source, [1, 2, 3, 4])
    [tree] = source.propose([asked(request, max_depth=6)._replace(max_nodes=max_nodes)])
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
    manifest = replace(engine.package.manifest, speculator=speculator.part, state_ids=(0,))
    package = cast(ModelPackage, SimpleNamespace(manifest=manifest))
    monkeypatch.setattr("reader_edge_runtime.lossy.big_little.open_speculator", lambda *_: speculator)

    def opened(given: DraftSources) -> list[DraftSource]:
        return BigLittle(confidence=0.3).open_sources(given, package, engine.tokenizer, TARGET, EngineConfig())

    [source] = opened(DraftSources())
    assert isinstance(source, SureSpeculatorSource)
    assert source.can_pay(1e-9)
    assert opened(DraftSources(has_speculator=False)) == []


def test_strengths_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"confidence is 1\.5, but must be from 0 to 1"):
        BigLittle(confidence=1.5)

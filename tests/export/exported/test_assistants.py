"""Packages with Gemma 4's assistants: passes read the rows that the target has of each text, and write none."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_export.speculators.calibrate_speculator import states_of
from reader_edge_export.speculators.text_attention import LentAttention
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.speculators.speculator import SpeculatorResult, TreeStep
from reader_edge_runtime.execution.onnxruntime.host.host_speculator import HostSpeculator
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.export.conftest import TinyModel
from tests.export.exported.test_speculators import answers, ask_always
from tests.export.speculators.assistant_folders import opened_assistant, write_assistant

TEXTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7], [2, 7, 1, 8]]  # one beyond the window, and one within it


Assisted = Callable[[str], Path]


@pytest.fixture(scope="module")
def assisted(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Assisted:
    """precision -> a package with a random assistant, whose folder lies beside it; not to be changed."""
    folder = tmp_path_factory.mktemp("assisted")
    write_assistant(folder / "assistant")

    @cache
    def export(precision: str) -> Path:
        options = ExportOptions(precision, check="none", speculator=folder / "assistant")
        export_model(tiny_model("gemma4_text"), folder / precision, options)
        return folder / precision

    return export


def test_a_pass_over_the_targets_cache_says_what_the_module_does(assisted: Assisted, tiny_model: TinyModel) -> None:
    """In each of two slots: behind states of the target, then a tree behind its own, all from one position."""
    package, source = ModelPackage.open(assisted("fp32")), find_source(tiny_model("gemma4_text"), None).open_model()
    opened = opened_assistant(assisted("fp32").parent / "assistant", tiny_model("gemma4_text"))
    module, lent = opened.module, opened.module.lent
    assert lent is not None
    target, speculator = HostTarget.open(package), HostSpeculator.open(package)
    cache, pending = target.new_cache(2, 64), [11, 12]
    trees = [DraftTree.chain(text) for text in TEXTS]
    rows = [range(len(text)) for text in TEXTS]
    scored = target.forward(cache, Pass(0, trees, rows, num_kept=64, wants_layer_states=True))
    assert scored.layer_states is not None
    number = package.manifest.state_ids.index(opened.state_ids[0])
    states = [scored.layer_states[number, b, len(text) - 1 : len(text)].copy() for b, text in enumerate(TEXTS)]
    for slot, text in enumerate(TEXTS):
        cache.commit(slot, range(len(text)))
    before = [each.copy() for slot in range(2) for each in cache.read_slot(slot, len(TEXTS[slot])).rows]
    first = _copied(speculator.catch_up(cache, 0, [[token] for token in pending], states))
    tree = DraftTree.root(0)
    for token_id, parent in ((7, 0), (8, 0), (2, 1)):
        tree.add(token_id, parent, "")
    own = np.concatenate([first.next_states[:, :1]] * 3, axis=1)
    steps = [TreeStep(tree, 1, own[b]) for b in range(2)]
    second = _copied(speculator.step(cache, 0, steps))
    for one, other in zip(before, (r for s in range(2) for r in cache.read_slot(s, len(TEXTS[s])).rows), strict=True):
        np.testing.assert_array_equal(one, other)
    known = states_of(LayeredModel(source), TEXTS, opened.state_ids, lent.layers)
    with opened.with_target(source).filled([module]), torch.no_grad():
        for b, each in enumerate(known):
            attention, num_rows = LentAttention(each.lent), len(each.token_ids)
            for result, ids, given in (
                (first, [pending[b]], each.states[:, -1:]),
                (second, [7, 8, 2], torch.from_numpy(own[b : b + 1])),
            ):
                attention.seen = torch.ones(len(ids), num_rows, dtype=torch.bool)
                positions = torch.full((1, len(ids)), num_rows)
                step = module.step(torch.tensor([ids]), positions, given, attention)
                wanted = module.logits(step.read)[0].softmax(-1)
                for node, shares in enumerate(wanted):
                    np.testing.assert_allclose(
                        result.probabilities[b, node], shares[result.top_ids[b, node]], atol=1e-5, rtol=1e-4
                    )
                np.testing.assert_allclose(result.next_states[b], step.next_states[0], atol=1e-4)


def _copied(result: SpeculatorResult) -> SpeculatorResult:
    return SpeculatorResult(result.top_ids.copy(), result.probabilities.copy(), result.next_states.copy())


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_passes_over_several_texts_read_what_passes_over_each_would(
    precision: str, assisted: Assisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    passed = HostSpeculator._pass

    def compared(
        speculator: HostSpeculator,
        cache: Cache,
        first_slot: int,
        steps: list[TreeStep],
        starts: list[int],
        has_scores: bool,
    ) -> SpeculatorResult:
        assert cache is engine.decoder.cache
        together.append(len(steps))
        found = _copied(passed(speculator, cache, first_slot, steps, starts, has_scores))  # type: ignore[arg-type]
        for b, step in enumerate(steps):
            num_nodes = len(step.tree) - step.num_scored
            alone = passed(speculator, cache, first_slot + b, [step], starts[b : b + 1], has_scores)  # type: ignore[arg-type]
            np.testing.assert_allclose(found.next_states[b, :num_nodes], alone.next_states[0], rtol=1e-5, atol=1e-5)
        return found

    engine = Engine.load(assisted(precision), config=EngineConfig(is_calibrated=False, max_batch=3))
    plain = Engine.load(assisted(precision), config=EngineConfig(is_drafted=False, max_batch=3))
    ask_always(engine)
    monkeypatch.setattr(HostSpeculator, "_pass", compared)
    assert answers(engine, 0.0) == answers(plain, 0.0)
    assert max(together) > 1


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_session_goes_on_without_anything_of_the_assistants(
    temperature: float, assisted: Assisted, tmp_path: Path
) -> None:
    config = EngineConfig(is_calibrated=False)
    engine, other = (Engine.load(assisted("int8"), config=config) for _ in range(2))
    plain = Engine.load(assisted("int8"), config=EngineConfig(is_drafted=False))
    source, _ = map(ask_always, (engine, other))
    wanted = GenerationConfig(max_tokens=12, sampling=SamplingConfig(temperature=temperature, seed=5))
    first = engine.generate("one two three", wanted)
    assert first.stats.proposed_by_source["speculator"] > 0
    assert source.state() == {}
    engine.save_session(tmp_path / "session")
    other.load_session(tmp_path / "session")
    text = "one two three" + first.text + " eleven"
    resumed = other.generate(text, wanted)
    assert resumed.stats.num_reused_tokens > 0
    assert resumed.stats.proposed_by_source["speculator"] > 0
    assert resumed.token_ids == plain.generate(text, wanted).token_ids

"""Packages with trained speculators, as engines run them: a tree's nodes are a chain's, and answers stay the same."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import onnx_ir as ir
import pytest

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.speculators.training.state_recorder import StateRecorder
from reader_edge_runtime import DraftSources, Engine, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.decoding import session
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.speculators.speculator import SpeculatorSlots, TreeStep
from reader_edge_runtime.drafting.speculators.speculator_source import SpeculatorSource
from reader_edge_runtime.errors import ProviderError, SessionError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_speculator import HostSpeculator
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import HAS_PAGES
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.manifest import file_entry
from reader_edge_runtime.package.manifest_file import write_manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.export.conftest import TinyModel
from tests.export.speculators.assistant_folders import SIZE, write_assistant
from tests.export.speculators.speculator_folders import DRAFT_VOCAB_SIZE, add_mtp, write_block, write_eagle3, write_mlp
from tests.tiny_models import VOCAB_SIZE, build_tiny_model

FORMS = [("mlp", "int8"), ("eagle3", "fp32"), ("eagle3", "int8"), ("mtp", "fp32"), ("mtp", "int8")]
ASSISTANTS = [("assistant", "fp32"), ("assistant", "int8")]
_SELECTOR = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 16, "selector_top_k": 4}
_MARKOV = {"architectures": ["Qwen3DSparkModel"], "markov_rank": 8, "enable_confidence_head": True}
_WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12}
BLOCKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{"dflash": ({}, {}), "dflash, windows": (_WINDOWS, {}), "dflash2": ({}, _SELECTOR), "dspark": (_MARKOV, {})},
    "dflash, hybrid": ({}, {}),
}
BLOCK_FORMS = [
    *[("dflash", "int8"), ("dflash, windows", "fp32"), ("dflash2", "int8"), ("dspark", "fp32")],
    ("dflash, hybrid", "int8"),
]
PROMPTS = ["one two three", "four", "five six seven eight nine ten " * 3]


@pytest.fixture(scope="module")
def speculating(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """(format, precision) -> a package with a random speculator; not to be changed."""
    made: dict[tuple[str, str], Path] = {}

    def package(format_name: str, precision: str) -> Path:
        if (format_name, precision) not in made:
            folder = tmp_path_factory.mktemp("speculating")
            source, speculator = tiny_model("llama"), str(folder / "speculator")
            if format_name == "mlp":
                write_mlp(folder / "speculator")
            elif format_name == "eagle3":
                write_eagle3(folder / "speculator")
            elif format_name == "assistant":
                source = tiny_model("gemma4_text")
                write_assistant(folder / "speculator")
            elif format_name in BLOCKS:
                write_block(folder / "speculator", BLOCKS[format_name][0], **BLOCKS[format_name][1])
                if "hybrid" in format_name:
                    source = build_tiny_model("qwen3_5_text", folder / "model")
            else:
                source, speculator = build_tiny_model("qwen3_5_text", folder / "model"), "auto"
                add_mtp(source, "qwen3_5_text")
            options = ExportOptions(precision, check="none", speculator=speculator)
            export_model(source, folder / "out", options)
            made[format_name, precision] = folder / "out"
        return made[format_name, precision]

    return package


def states(count: int, size: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, size)).astype(np.float32)


@pytest.mark.parametrize(("format_name", "precision"), FORMS)
def test_nodes_are_scored_as_in_a_chain(
    speculating: Callable[[str, str], Path], format_name: str, precision: str
) -> None:
    speculator = HostSpeculator.open(ModelPackage.open(speculating(format_name, precision)))
    texts, read = [[3, 1, 4, 1], [5, 9]], [states(4, speculator.state_size), states(2, speculator.state_size)]
    own = states(5, speculator.part.hidden_size)
    tree = DraftTree.root(1)
    for token_id, parent in ((7, 0), (8, 0), (2, 1), (6, 2), (5, 4)):
        tree.add(token_id, parent, "")
    cache = speculator.new_cache(2, 64)
    together = speculator.catch_up(cache, 0, texts, read)
    after = [together.probabilities[b, 0].copy() for b in range(2)]
    for b, text in enumerate(texts):
        cache.commit(b, range(len(text)))
    small = TreeStep(DraftTree.chain([9, 3]), 1, own[:1])
    small_step = [each.copy() for each in speculator.step(cache, 0, [TreeStep(tree.pruned(3), 1, own[:2]), small])[:3]]
    more = [each.copy() for each in speculator.step(cache, 0, [TreeStep(tree, 3, own[2:]), small])[:3]]
    alone = speculator.new_cache(1, 64)
    one = speculator.catch_up(alone, 0, texts[:1], read[:1]).probabilities[0, 0]
    np.testing.assert_allclose(one, after[0], rtol=1e-5)
    alone.commit(0, range(4))
    chain = DraftTree.chain([1, 8, 6, 5])
    path = speculator.step(alone, 0, [TreeStep(chain, 1, own[[1, 3, 4]])])
    for part, node, number in ((small_step, 1, 0), (more, 1, 1), (more, 2, 2)):
        np.testing.assert_array_equal(part[0][0, node], path.top_ids[0, number])
        np.testing.assert_allclose(part[1][0, node], path.probabilities[0, number], rtol=1e-5)
        np.testing.assert_allclose(part[2][0, node], path.next_states[0, number], rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("format_name", "precision"), BLOCK_FORMS)
def test_rows_of_a_block_draft_have_the_same_bits_alone_in_a_batch_and_read_at_once_or_not(
    speculating: Callable[[str, str], Path], format_name: str, precision: str
) -> None:
    speculator = HostSpeculator.open(ModelPackage.open(speculating(format_name, precision)))
    block = speculator.part.block
    assert block is not None
    texts = [list(range(9)), [3, 1, 4], list(range(40, 60))]
    read = [states(len(text), speculator.state_size) for text in texts]
    cache = speculator.new_cache(3, 64)
    result = speculator.catch_up(cache, 0, texts, read, block.max_drafts)
    together = [None if each is None else each.copy() for each in (*result[:2], result.pair_logits)]
    assert (result.pair_logits is not None) == (format_name in ("dflash2", "dspark"))
    for b, text in enumerate(texts):
        cache.commit(b, range(len(text)))
        alone, first = speculator.new_cache(1, 64), len(text) // 2
        speculator.catch_up(alone, 0, [text[:first]], [read[b][:first]])
        alone.commit(0, range(first))
        one = speculator.catch_up(alone, 0, [text[first:]], [read[b][first:]], block.max_drafts)
        alone.commit(0, range(len(text) - first))
        for mine, theirs in zip((*one[:2], one.pair_logits), together, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                np.testing.assert_allclose(mine[0], theirs[b], rtol=1e-5, atol=1e-6)
        for mine, theirs in zip(alone.read_slot(0, len(text)).rows, cache.read_slot(b, len(text)).rows, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def answers(engine: Engine, temperature: float) -> list[tuple[int, ...]]:
    config = GenerationConfig(max_tokens=24, sampling=SamplingConfig(temperature=temperature, seed=5))
    return [tuple(each.token_ids) for each in engine.generate_batch(PROMPTS, config)]


def ask_always(engine: Engine) -> SpeculatorSource:
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    source = next(each for each in engine.decoder.drafter.wait().sources._sources if isinstance(each, SpeculatorSource))
    source.gain.pays = lambda top_probability, token_s: True  # type: ignore[method-assign]
    return source


@pytest.mark.parametrize(
    ("format_name", "precision"),
    [*FORMS, *BLOCK_FORMS, *(pytest.param(*form, marks=pytest.mark.long) for form in ASSISTANTS)],
)
def test_answers_are_plain_ones_also_with_hostile_weights(
    speculating: Callable[[str, str], Path], format_name: str, precision: str, tmp_path: Path
) -> None:
    folder = speculating(format_name, precision)
    config = EngineConfig(is_calibrated=False, max_batch=3)
    plain = Engine.load(folder, config=EngineConfig(is_drafted=False, max_batch=3))
    engine = Engine.load(folder, config=config)
    source = ask_always(engine)
    for temperature in (0.0, 0.8):
        assert answers(engine, temperature) == answers(plain, temperature)
    assert max(len(slot.token_ids) for slot in source.slots.slots) > 24
    engine.forget()
    assert isinstance(source.slots.cache, HostCache)
    assert not (HAS_PAGES and any(slab.memory.any() for slab in source.slots.cache.slabs)), "rows are forgotten"
    for number in (np.nan, 1e30):
        part = engine.package.manifest.speculator
        assert part is not None
        width = SIZE if format_name == "assistant" else part.hidden_size
        spoilt = spoil(folder, tmp_path / str(number), np.full(width, number, np.float32))  # in a norm
        with np.errstate(all="raise"):
            hostile = Engine.load(spoilt, config=config)
            ask_always(hostile)
            for temperature in (0.0, 0.8):
                assert answers(hostile, temperature) == answers(plain, temperature)


@pytest.mark.long
@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 1 << 62])
def test_a_broken_vocabulary_map_changes_no_answer(
    speculating: Callable[[str, str], Path], token_id: int, tmp_path: Path
) -> None:
    folder = speculating("eagle3", "int8")
    spoilt = spoil(folder, tmp_path / "spoilt", np.full(DRAFT_VOCAB_SIZE, token_id, np.int64))
    speculator = HostSpeculator.open(ModelPackage.open(spoilt))
    small_step = speculator.catch_up(speculator.new_cache(1, 8), 0, [[3]], [states(1, speculator.state_size)])
    assert (small_step.top_ids == token_id).all()
    plain = Engine.load(folder, config=EngineConfig(is_drafted=False, max_batch=3))
    hostile = Engine.load(spoilt, config=EngineConfig(is_calibrated=False, max_batch=3))
    ask_always(hostile)
    for temperature in (0.0, 0.8):
        assert answers(hostile, temperature) == answers(plain, temperature)


def test_a_speculator_whose_first_pass_fails_is_named_and_left_out(
    speculating: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ProviderError("ONNX Runtime failed in a pass.")

    folder = speculating("eagle3", "int8")
    monkeypatch.setattr(HostSpeculator, "step", fail)
    with pytest.warns(UserWarning, match=r"^The speculator is not called: ONNX Runtime failed in a pass\.$"):
        engine = Engine.load(folder, config=EngineConfig(is_calibrated=False, max_batch=3))
    assert not engine.decoder.drafter.wants_layer_states
    plain = Engine.load(folder, config=EngineConfig(is_drafted=False, max_batch=3))
    assert answers(engine, 0.0) == answers(plain, 0.0)


def spoil(folder: Path, out: Path, values: np.ndarray) -> Path:
    """A package whose speculator has this in the place of what it has of the same shape and type."""
    shutil.copytree(folder, out)
    model = ir.load(out / "speculator.onnx")
    num_spoilt = 0
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if (
            tensor is not None
            and tensor.dtype.numpy() == values.dtype
            and list(tensor.shape.numpy()) == [*values.shape]
        ):
            value.const_value = ir.Tensor(values, name=value.name)
            num_spoilt += 1
    assert num_spoilt
    ir.save(model, out / "speculator.onnx")
    package = ModelPackage.open(out)
    files = {**package.manifest.files, "speculator.onnx": file_entry(out / "speculator.onnx")}
    write_manifest(out, replace(package.manifest, files=files))
    return out


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("format_name", ["eagle3", "mtp", "dflash"])
def test_a_session_goes_on_with_the_speculators_rows_and_the_plain_answer(
    speculating: Callable[[str, str], Path], format_name: str, temperature: float, tmp_path: Path
) -> None:
    folder, config = speculating(format_name, "int8"), EngineConfig(is_calibrated=False)
    plain = Engine.load(folder, config=EngineConfig(is_drafted=False))
    engine, other = (Engine.load(folder, config=config) for _ in range(2))
    source, taken = map(ask_always, (engine, other))
    wanted = GenerationConfig(max_tokens=12, sampling=SamplingConfig(temperature=temperature, seed=5))
    first = engine.generate(PROMPTS[0], wanted)
    assert first.token_ids == plain.generate(PROMPTS[0], wanted).token_ids
    assert 0 < first.stats.proposed_by_source["speculator"] <= first.stats.num_steps
    engine.save_session(tmp_path / "session")
    other.load_session(tmp_path / "session")
    assert [slot.token_ids for slot in taken.slots.slots] == [slot.token_ids for slot in source.slots.slots]
    assert max(len(slot.token_ids) for slot in taken.slots.slots) > 12
    text = PROMPTS[0] + first.text + " eleven"
    resumed = other.generate(text, wanted)
    assert resumed.stats.num_reused_tokens > 0
    assert resumed.stats.proposed_by_source["speculator"] > 0
    assert resumed.token_ids == engine.generate(text, wanted).token_ids == plain.generate(text, wanted).token_ids


def test_a_sessions_limit_leaves_room_for_the_speculators_rows(
    speculating: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.load(speculating("eagle3", "int8"), config=EngineConfig(is_calibrated=False))
    source, manifest = ask_always(engine), engine.package.manifest
    engine.generate(PROMPTS[0], GenerationConfig(max_tokens=12))
    engine.save_session(tmp_path / "session")
    row_bytes = source.state()["rows/0"].nbytes // source.state()["rows/0"].shape[2] + manifest.kv_row_bytes
    full_bytes = engine.decoder.config.max_batch * manifest.max_context * row_bytes
    num_others = (tmp_path / "session").stat().st_size - full_bytes
    monkeypatch.setattr(session, "MAX_BYTES", num_others)
    engine.load_session(tmp_path / "session")
    monkeypatch.setattr(session, "MAX_BYTES", num_others - 1)
    with pytest.raises(SessionError, match="is not a file of a session"):
        engine.load_session(tmp_path / "session")


@pytest.mark.parametrize("pays", [False, True])
def test_a_speculator_that_cannot_pay_costs_nothing_once_it_was_timed(
    pays: bool, speculating: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: WeakSet[HostSpeculator | SpeculatorSlots] = WeakSet()
    asks_for_states: list[bool] = []
    forward, open_speculator, make_slots = HostTarget.forward, HostSpeculator.__init__, SpeculatorSlots.__init__

    def noted_open(speculator: HostSpeculator, *given: Any) -> None:
        open_speculator(speculator, *given)
        opened.add(speculator)

    def noted_slots(slots: SpeculatorSlots, *given: Any) -> None:
        make_slots(slots, *given)
        opened.add(slots)

    def noted_pass(target: HostTarget, cache: Cache, wanted: Pass) -> ForwardResult:
        asks_for_states.append(wanted.wants_layer_states)
        return forward(target, cache, wanted)

    monkeypatch.setattr(HostSpeculator, "__init__", noted_open)
    monkeypatch.setattr(SpeculatorSlots, "__init__", noted_slots)
    monkeypatch.setattr(HostTarget, "forward", noted_pass)
    monkeypatch.setattr(SpeculatorSource, "pays_off", lambda source, pass_s: pays)
    engine = Engine.load(speculating("eagle3", "int8"))
    assert len(opened) == 2 * pays
    engine.generate(PROMPTS[0], GenerationConfig(max_tokens=12))
    assert any(asks_for_states) == pays
    assert engine.decoder.drafter.wants_layer_states == pays  # without, no step is learned from that drafted nothing
    assert len(opened) == 2 * pays


def test_an_own_drafter_opens_no_speculator(
    speculating: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostSpeculator, "open", None)
    engine = Engine.load(speculating("eagle3", "int8"), EngineConfig(is_calibrated=False), drafter=StateRecorder([0]))
    assert engine.generate(PROMPTS[0], GenerationConfig(max_tokens=3)).token_ids


def test_speculators_can_be_left_out(speculating: Callable[[str, str], Path]) -> None:
    engine = Engine.load(speculating("eagle3", "int8"), sources=DraftSources(has_speculator=False))
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    assert engine.decoder.drafter.sources.names == ("tools",)

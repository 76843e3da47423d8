"""The subpackage execution: the cache is updated in place, the graph is held to its contract, imports stay lean."""

import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import InstallationError, ProviderError
from reader_edge_runtime.execution.inputs import prepare_inputs
from reader_edge_runtime.execution.onnxruntime import session as provider
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.wheel import installed_wheel
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.machine.process_memory import FilePages
from reader_edge_runtime.machine.processor import num_usable_cores
from reader_edge_runtime.package.manifest import MASKED, WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.fake_target import make_manifest

# A pass at each of 600 pasts; prints the bytes that they leave behind.
EVER_NEW_LENGTHS = """
import sys
from reader_edge.terminal.memory import resident_bytes
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
target = HostTarget.open(ModelPackage.open(sys.argv[1]))
cache = target.new_cache(1, 800)
cache.fill(0, 800)  # its pages are there before
def run_passes(pasts):
    for past in pasts:
        cache.lengths[0] = past
        target.forward(cache, Pass(0, [DraftTree.root(5)], [[0]]))
run_passes(range(750, 770))
before = resident_bytes()
run_passes(range(100, 700))
print(resident_bytes() - before)
"""
IN_PLACE = "in-place optimization not activated"


def test_kv_cache_is_updated_in_place_without_a_warning(
    demo_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(provider, "LOG_SEVERITY", 2)
    engine = Engine.load(demo_folder, EngineConfig(is_calibrated=False))
    engine.generate_batch(["# tar", "# git commit and more"], GenerationConfig(max_tokens=20))
    assert IN_PLACE not in capfd.readouterr().err


def test_control_a_copied_kv_cache_does_warn(
    demo_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(provider, "LOG_SEVERITY", 2)
    target = HostTarget.open(ModelPackage.open(demo_folder))
    cache = HostCache(target.manifest, 1, 16)
    inputs = dict(prepare_inputs(cache, Pass(0, [DraftTree.chain([1])], [[0]]), target.manifest, 1))
    inputs |= cache.tensors(0, 1)
    target.session.run(None, inputs)
    assert IN_PLACE in capfd.readouterr().err


@pytest.mark.parametrize("min_rows", [1, 9])
def test_a_second_pass_sees_what_its_nodes_see_in_one_pass_of_all(min_rows: int) -> None:
    manifest = replace(make_manifest(), sliding_window=4)
    tree = DraftTree([5, 6, 7, 8, 9, 4], [-1, 0, 1, 1, 2, 0], [""] * 6)
    cache = HostCache(manifest, 1, 32)
    cache.assume(0, 7)
    whole = prepare_inputs(cache, Pass(0, [tree], [range(6)]), manifest, 1)
    second = prepare_inputs(cache, Pass(0, [tree], [range(2, 6)], num_before=2), manifest, min_rows)
    num_padding = max(min_rows - 4, 0)
    assert second["write_pos"].tolist() == [9]
    assert second["logit_rows"].tolist() == [[0, 1, 2, 3]]
    for name in ("input_ids", "position_ids"):
        assert second[name][0, :4].tolist() == whole[name][0, 2:].tolist()
    for name in ("tree_mask", "tree_mask_sliding"):
        assert second[name].shape == (1, 1, 4 + num_padding, 13 + num_padding)
        assert second[name][..., :4, :13].tobytes() == whole[name][..., 2:, :].tobytes()
        assert (second[name][0, 0, :4, 13:] == MASKED).all()


def test_decoding_opens_no_network_connection(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert engine.generate("# tar", GenerationConfig(max_tokens=10)).text


def test_the_runtime_imports_no_more_than_it_needs_and_tools_import_it_first() -> None:
    code = "import sys, reader_edge_runtime; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert not {"torch", "transformers", "optimum", "onnx", "click", "rich"} & set(done.stdout.split())
    # Else its telemetry is not off yet.
    root = Path(__file__).parents[3]
    tools = [*(root / "scripts").iterdir(), root / "benchmarks" / "peers" / "workers" / "reader_edge_worker.py"]
    imports = re.compile(r"^(import|from) onnxruntime\b", re.MULTILINE)
    assert [path.name for path in tools if path.is_file() and imports.search(path.read_text(encoding="utf-8"))] == []


def test_graph_that_differs_from_the_manifest_is_refused(demo_folder: Path) -> None:
    package = ModelPackage.open(demo_folder)
    for change in ({"num_layers": 2}, {"head_dim": 32}, {"vocab_size": 5}, {"sliding_window": 16}):
        wrong = ModelPackage(package.folder, replace(package.manifest, **change))  # type: ignore[arg-type]
        with pytest.raises(ProviderError, match="export"):
            HostTarget.open(wrong)


@pytest.mark.parametrize(
    ("installed", "sentence"), [(set(), "is missing"), ({"onnxruntime", "onnxruntime-gpu"}, "both installed")]
)
def test_no_wheel_or_two_are_refused(installed: set[str], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(InstallationError, match=sentence):
        installed_wheel()


def test_a_missing_wheel_is_one_sentence_whatever_is_imported_first() -> None:
    code = """
import sys
from importlib import metadata
def version(name):
    raise metadata.PackageNotFoundError(name)
metadata.version = version
sys.modules["onnxruntime"] = None
import reader_edge_runtime.machine.processor
from reader_edge_runtime import Engine
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "InstallationError: ONNX Runtime is missing" in done.stderr.splitlines()[-1]


@pytest.mark.long
def test_onnx_runtime_leaves_no_id_of_the_machine_and_no_events_in_the_cache(demo_folder: Path, tmp_path: Path) -> None:
    code = "import sys; from reader_edge_runtime import Engine; Engine.load(sys.argv[1])"
    folders = {name: str(tmp_path) for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    subprocess.run([sys.executable, "-c", code, str(demo_folder)], check=True, env=os.environ | folders)
    assert {path.name for path in tmp_path.iterdir()} <= {"reader-edge"}


def test_threads_are_the_usable_cores_unless_given(demo_folder: Path) -> None:
    assert num_usable_cores() >= 1
    target = Engine.load(demo_folder, EngineConfig(threads=1, is_calibrated=False, is_probed=False)).decoder.target
    assert isinstance(target, HostTarget)
    assert target.session.get_session_options().intra_op_num_threads == 1


def test_precise_kernels_are_used_where_sums_saturate(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That they help is shown by scripts/check_processor (docs/explanation/processors.md)."""
    monkeypatch.setattr(provider, "has_saturating_sums", lambda: True)
    options = HostTarget.open(ModelPackage.open(demo_folder), uses_native=False).session.get_session_options()
    assert options.get_session_config_entry("session.x64quantprecision") == "1"


def test_masked_rows_and_padding_change_no_bit(demo_folder: Path) -> None:
    """A ragged batch pads the shorter tree and sees more rows than it needs; its logits stay the same bits."""
    target = HostTarget.open(ModelPackage.open(demo_folder))
    cache = HostCache(target.manifest, 2, 64)
    for slot, prompt in enumerate(([5, 6, 7], list(range(20, 50)))):
        target.forward(cache, Pass(slot, [DraftTree.chain(prompt)], [[0]]))
        cache.commit(slot, list(range(len(prompt))))
    small = DraftTree([8, 9, 10], [-1, 0, 0], [""] * 3)
    large = DraftTree([8, 9, 10, 11, 12, 13], [-1, 0, 0, 1, 2, 4], [""] * 6)
    alone = target.forward(cache, Pass(0, [small], [range(3)], wants_logits=True)).wanted_logits[0].copy()
    both = Pass(0, [small, large], [range(3), range(6)], wants_logits=True)
    together = target.forward(cache, both).wanted_logits[0, :3]
    assert alone.tobytes() == together.tobytes()


def test_kept_tensors_change_no_bit_whatever_passes_came_before(demo_folder: Path) -> None:
    """Sizes come and go and come again, in two slots, over a cache that moves; logits outgrow theirs, or are let go."""
    target = HostTarget.open(ModelPackage.open(demo_folder))
    cache = target.new_cache(2, 32)
    cache.lengths[:] = [5, 9]
    results = []
    for number, (slot, width) in enumerate([(0, 1), (0, 3), (0, 1), (1, 1), (1, 3), (0, 3), (0, 64), (0, 1), (1, 1)]):
        if number == 6:
            cache.reserve(2, 128)
        if number == 4:
            target.release_memory()
        trees = [DraftTree.chain(list(range(number, number + width)))]
        result = target.forward(cache, Pass(slot, trees, [range(width)], wants_logits=True))
        fresh = HostTarget(target.session, target.manifest)
        expected = fresh.forward(cache, Pass(slot, trees, [range(width)], wants_logits=True))
        assert result.wanted_logits.tobytes() == expected.wanted_logits.tobytes()
        results.append((result, expected))
    for result, expected in results:
        assert result.top_ids.tobytes() == expected.top_ids.tobytes()
        assert result.top_logits.tobytes() == expected.top_logits.tobytes()


@pytest.mark.long
def test_prompts_come_in_chunks_that_shrink_where_a_graph_holds_all_scores(demo_folder: Path) -> None:
    package = ModelPackage.open(demo_folder)
    pure = HostTarget.open(package, uses_native=False)
    chunks = [pure.prefill_chunk(past) for past in (0, 1000, 4000)]
    assert chunks == sorted(chunks, reverse=True)
    assert chunks[0] > chunks[-1] >= 16
    native = HostTarget(pure.session, pure.manifest, is_native=True)
    assert native.prefill_chunk(4000) == native.prefill_chunk(0) > chunks[0]


def test_prefill_takes_the_models_chunks_unless_given(
    demo_folder: Path, monkeypatch: pytest.MonkeyPatch, held_out_texts: list[str]
) -> None:
    widths = []
    forward = HostTarget.forward

    def recorded(self: HostTarget, cache: HostCache, wanted: Pass) -> ForwardResult:
        widths.append(len(wanted.trees[0]))
        return forward(self, cache, wanted)

    monkeypatch.setattr(HostTarget, "forward", recorded)
    monkeypatch.setattr(HostTarget, "prefill_chunk", lambda self, past: 30 if past < 60 else 20)
    for chunk, expected in ((0, [30, 30, 20, 20]), (70, [70, 30])):
        engine = Engine.load(demo_folder, EngineConfig(prefill_chunk=chunk, is_probed=False, is_calibrated=False))
        prompt = engine.encode_prompt(held_out_texts[1])[:100]
        widths.clear()
        sequence = engine.decoder.submit(prompt, GenerationConfig(max_tokens=1, is_drafted=False))
        engine.decoder.finish(sequence)
        assert widths == expected


@pytest.mark.long
def test_passes_leave_nothing_behind_at_ever_new_lengths(demo_folder: Path) -> None:
    # ONNX Runtime keeps one for good for each, 10 KB on the demo; its heap decides whether a process grows by it.
    session = HostTarget.open(ModelPackage.open(demo_folder)).session
    assert not session.get_session_options().enable_mem_pattern
    command = [sys.executable, "-c", EVER_NEW_LENGTHS, str(demo_folder)]
    assert int(subprocess.run(command, capture_output=True, check=True, text=True).stdout) < 4 << 20


def test_rows_of_the_vocabulary_are_given_back_every_few_tokens(demo_folder: Path) -> None:
    class Pages(FilePages):
        num_forgotten = 0

        def forget(self) -> None:
            self.num_forgotten += 1

    opened = HostTarget.open(ModelPackage.open(demo_folder))
    pages = Pages(demo_folder / WEIGHTS_NAME)
    target = HostTarget(opened.session, opened.manifest, weights=pages)
    cache = target.new_cache(1, 256)
    for num_tokens, expected in ((20, 0), (20, 1), (100, 2), (1, 2)):
        target.forward(cache, Pass(0, [DraftTree.chain(list(range(num_tokens)))], [[0]]))
        assert pages.num_forgotten == expected

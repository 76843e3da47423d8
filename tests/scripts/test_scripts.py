"""Scripts of maintainers: overhead, reports of a GPU, priors, symbols of the native library, pictures, crashes."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from reader_edge.bench.recording import RecordedRequest, RecordedTurn, Successors
from reader_edge_runtime.acceptance import EXACT, Choices
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.decoding.verification import walk
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.parameters import cold_parameters, shipped_parameters
from reader_edge_runtime.drafting.sources.successor_store import SuccessorTable
from reader_edge_runtime.drafting.speculators.speculator import SpeculatorResult
from reader_edge_runtime.forward_result import ForwardResult
from tests.conftest import ROOT
from tests.runtime.drafting.sources.test_successor_store import VOCAB_SIZE, random_table

bare_walk = runpy.run_path(str(ROOT / "scripts" / "bench_overhead"))["bare_walk"]


@pytest.mark.parametrize("last", [99, 5])
def test_it_walks_as_the_exact_rule_does(last: int) -> None:
    """last: a token that ends the answer."""
    tree = DraftTree.root(4)
    for parent, token_id in ((0, 5), (0, 6), (1, 7), (3, 8)):
        tree.add(token_id, parent, "context")

    def peek(node: int) -> int:
        return [5, 7, 0, 1, 0][node]

    def take(node: int, token_id: int) -> bool:
        return token_id == last

    choices = Choices(tree, cast(ForwardResult, SimpleNamespace()), 0, peek, lambda token_id: True)
    found = bare_walk(tree, peek, take)
    assert found == walk(EXACT, choices, take)
    assert found.token_ids == ([5] if last == 5 else [5, 7, 1])


SECTIONS = (
    "Machine",
    "Parity with the CPU provider",
    "verify, fp16",
    "verify, fp32, fast attention",
    "verify --guard, fp16, fast attention",
    "verify, tiny",
    "verify, tiny, repeated",
    "Passes, tiny",
    "Passes, tiny, repeated",
    "TensorRT",
    "Training a speculator",
    "Memory",
)


@pytest.mark.long
def test_the_tiny_check_goes_all_the_way_on_the_cpu(tmp_path: Path) -> None:
    done = _run("--provider", "cpu", "--tiny", "-o", str(tmp_path / "report.md"))
    report = (tmp_path / "report.md").read_text()
    assert done.returncode == 0, report
    assert "all checks passed" in report
    assert re.findall("^## (.*)$", report, re.MULTILINE) == list(SECTIONS)
    assert len(re.findall(r"[1-9]\d* tokens compared, 0 divergences", report)) == 5
    assert len(re.findall(r"^\| (64|128) \| ([\d.]+ \([\d.]+\) \| ?){7}$", report, re.MULTILINE)) == 4
    assert "Left out: The installed wheel, onnxruntime" in report
    assert torch.cuda.is_available() or re.search(r"Left out: PyTorch \S+ sees no GPU\.", report)


@pytest.mark.long
def test_without_cuda_the_check_is_one_sentence(tmp_path: Path) -> None:
    """Holds on a machine with the CPU wheel, as in CI."""
    done = _run("-o", str(tmp_path / "report.md"))
    assert done.returncode == 1
    assert re.fullmatch(r"The installed wheel, onnxruntime .*'reader-edge\[gpu\]'\.\n", done.stderr)
    assert not list(tmp_path.iterdir())


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "gpu_check"), *arguments]
    # Tiny models gain nothing from threads, and lose much where other processes compete for the cores.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


SCRIPT = runpy.run_path(str(ROOT / "scripts" / "learn_priors"))
FreshDrafting, by_task, in_turn = (SCRIPT[name] for name in ("FreshDrafting", "by_task", "in_turn"))


def copying(task: str, seed: int) -> RecordedRequest:
    """An answer that repeats its prompt, while the target's likely successors, by its scores, are other tokens."""
    text = np.random.default_rng(seed).permutation(VOCAB_SIZE)[: VOCAB_SIZE // 2].tolist()
    prompt, output = [*text, text[0]], text[1:]
    positions = np.arange(len(prompt) + len(output) - 1)
    text_ids = np.array([*prompt, *output])
    top_ids = np.stack([text_ids[1:], (text_ids[1:] + 1) % VOCAB_SIZE], axis=1)
    top_logits = np.tile(np.array([2.0, 1.0], np.float32), (len(positions), 1))
    return RecordedRequest(task, [RecordedTurn(prompt, output, Successors(positions, top_ids, top_logits))])


def test_requests_are_grouped_by_task_and_taken_in_turn() -> None:
    requests = [copying(task, seed) for seed, task in enumerate(["a", "a", "b", "a"])]
    tasks = by_task(requests)
    assert {task: len(each) for task, each in tasks.items()} == {"a": 3, "b": 1}
    assert [each.task for each in in_turn(tasks.values())] == ["a", "b", "a", "a"]


def test_every_replay_begins_again_and_leaves_the_parameters_that_it_began_with() -> None:
    drafting, parameters = FreshDrafting(None, ()), cold_parameters()
    request, before = copying("a", 1), parameters.copy()
    first = drafting.stats(request, parameters, 8)
    assert drafting.stats(request, parameters, 8).num_steps == first.num_steps
    assert (parameters == before).all()
    assert first.num_decoded_tokens == len(request.turns[0].output) - 1  # the pass over the prompt gives the first


def test_a_packages_own_answers_are_drafted_from() -> None:
    request = copying("a", 1)
    turn = request.turns[0]
    sent = RecordedRequest("a", [RecordedTurn(turn.prompt[-1:], turn.output)])  # without the text that it copies
    own = np.array([*turn.prompt[-1:], *turn.output], np.int32)
    unknown = FreshDrafting(None, ()).stats(sent, cold_parameters(), 8)
    known = FreshDrafting(None, [own, own]).stats(sent, cold_parameters(), 8)
    assert known.acceptance_length > 2 * unknown.acceptance_length


def test_taught_parameters_value_what_came_more_than_before() -> None:
    table = random_table()
    drafting = FreshDrafting(table, ())
    cold = cold_parameters()
    taught = drafting.taught([copying("a", seed) for seed in range(8)], cold)
    assert promised(table, taught) > promised(table, cold)


def test_a_sure_copy_is_worth_more_by_shipped_priors_than_by_those_set_by_hand() -> None:
    # Values too low make trees too small, so that all sources together were slower than the context alone.
    table = random_table()
    assert promised(table, shipped_parameters()) > promised(table, cold_parameters())


def promised(table: SuccessorTable, parameters: Float32Array) -> float:
    """Tokens that a draft of 8 nodes promises in the middle of a copy which the table knows nothing of."""
    core = DraftingCore(DraftConfig(max_nodes=9), parameters, table=table)
    text = copying("a", 99).turns[0]
    request = core.begin([*text.prompt, *text.output[:8]])
    return sum(request.draft(9, 16).values)


CHECK = ROOT / "scripts" / "check_symbols"
needs_symbols = pytest.mark.skipif(
    not (shutil.which("c++") and shutil.which("nm")), reason="no C++ compiler, or no nm (apt-get install g++)"
)
OWN = "namespace reader_edge::some { [[gnu::noinline]] inline int own(int x) { return x + 1; } }\n"
SHARED = "namespace reader_edge { [[gnu::noinline]] inline int shared(int x) { return x + 2; } }\n"
CALLERS = "int first(int x) { return reader_edge::some::own(x); }\n"
OTHER_CALLERS = "int second(int x) { return reader_edge::shared(x); }\n"


@needs_symbols
@pytest.mark.parametrize(
    ("source", "expected"), [(OWN + CALLERS, 0), (OWN + SHARED + CALLERS + OTHER_CALLERS, 1), (None, 1)]
)
def test_a_weak_symbol_outside_its_namespace_is_found(source: str | None, expected: int, tmp_path: Path) -> None:
    if source is not None:
        folder = tmp_path / "CMakeFiles" / "some.dir" / "src" / "kernels"
        folder.mkdir(parents=True)
        compiler = ["c++", "-std=c++17", "-O2", "-c", "-x", "c++", "-", "-o", str(folder / "some.o")]
        subprocess.run(compiler, input=source, text=True, check=True)
    done = subprocess.run([sys.executable, CHECK, tmp_path], capture_output=True, text=True)
    assert done.returncode == expected, done.stdout + done.stderr
    assert ("reader_edge::shared(int)" in done.stdout) == (source is not None and expected == 1)


@pytest.mark.parametrize("name", ["gains", "memory"])
def test_pictures_are_those_of_the_measured_tables(name: str) -> None:
    drawing = runpy.run_path(str(ROOT / "scripts" / "draw_pictures"))[f"{name}_drawing"]()
    assert drawing == (ROOT / "docs" / "images" / f"{name}.svg").read_text("utf-8")  # else: draw it again


def test_the_fuzzer_keeps_one_input_a_crash_with_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    keep = runpy.run_path(str(ROOT / "scripts" / "fuzz"))["keep_crash"]
    for data in (b"first", b"second"):
        try:
            int(data)
        except ValueError as error:
            keep(tmp_path, data, error)
    kept, report = sorted(tmp_path.iterdir())
    assert kept.read_bytes() == b"first"
    assert "invalid literal" in report.read_text("utf-8")


def test_without_a_fuzzer_the_remedy_comes_before_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    main = runpy.run_path(str(ROOT / "scripts" / "fuzz"))["main"]
    monkeypatch.setitem(sys.modules, "atheris", None)
    monkeypatch.setattr(sys, "argv", ["fuzz", "gguf", "--folder", str(tmp_path / "kept")])
    with pytest.raises(SystemExit, match="`pip install atheris`"):
        main()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(sys, "argv", ["fuzz", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert "'gguf'" in capsys.readouterr().out


def test_copies_are_drafted_from_the_longest_match_and_a_known_best_copy_is_as_long_at_least() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "bench_copies"))
    turn = RecordedTurn([7, 1, 2, 8, 3, 1, 2, 9, 9, 1, 2, 8, 8, 7, 1, 2], [9, 9, 5])
    request = script["CopyRequest"]([script["Text"](2)], turn)
    assert script["longest_suffix"](2, 2, request).token_ids == [2, 8, 3]  # three tokens match there, and two elsewhere
    assert script["longest_suffix"](4, 2, request).token_ids == [2]
    assert script["oracle"](8, request).token_ids == [2, 9, 9]
    branches = script["ada_pld"](None, 4, request)
    assert (branches.token_ids, branches.parents) == ([2, 8, 3, 9, 9], [-1, 0, 1, 0, 3])
    request.observe([9, 9])
    assert script["oracle"](8, request).token_ids == [9]


def test_where_no_two_tokens_match_ada_pld_goes_on_as_behind_the_likest_tokens() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "bench_copies"))
    like = np.eye(6, dtype=np.float32)[[0, 1, 2, 3, 4, 5, 3]]  # 3 and 6 mean the same
    request = script["CopyRequest"]([script["Text"](2)], RecordedTurn([1, 3, 5, 4, 0, 2, 1, 6], [5]))
    assert script["ada_pld"](None, 4, request).token_ids == [6]
    assert script["ada_pld"](like, 2, request).token_ids[:2] == [6, 5]


def test_graft_fills_what_it_prunes_with_what_followed_last() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "bench_copies"))
    request = script["CopyRequest"]([script["Text"](1)], RecordedTurn([1, 2, 1, 3, 4, 1], [3]))
    request.own = SimpleNamespace(draft=lambda num: DraftTree([1, 2, 5], [-1, 0, 1], ["", "", ""], [1.0, 0.5, 0.1]))
    tree = script["grafted"](0.2, 3, request)
    assert (tree.token_ids, tree.parents) == ([1, 2, 3, 4], [-1, 0, 0, 2])


def test_ddtree_has_the_most_valuable_paths_through_a_block() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "compare_block_trees"))
    shares = np.array([[[0.6, 0.4], [0.9, 0.1]]], np.float32)
    pairs = np.log([[[[0.3, 0.7]] * 2, [[0.2, 0.8], [0.9, 0.1]]]])
    result = SpeculatorResult(np.array([[[1, 2], [3, 4]]]), shares, np.zeros((1, 0, 1), np.float32), pairs)
    tree = script["ddtree"](9, result, 5, has_pairs=False)
    assert (tree.token_ids, tree.parents) == ([9, 1, 3, 2, 3], [-1, 0, 1, 0, 3])
    assert script["ddtree"](9, result, 5, has_pairs=True).token_ids == [9, 2, 3, 1, 4]
    assert script["chain"](9, result, 5).token_ids == [9, 1, 3]

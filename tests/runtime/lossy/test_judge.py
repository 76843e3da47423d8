"""The judge's rule: what it lets through, what no judge may, and files that are whole or refused."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.acceptance import Choices
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, JudgeError
from reader_edge_runtime.lossy.judge import Judge, Judged
from reader_edge_runtime.lossy.judge_figures import MOST_NATS, NAMES, JudgeFigures
from reader_edge_runtime.lossy.judge_file import JudgeFile
from reader_edge_runtime.lossy.lossy_engine import LossyEngine
from reader_edge_runtime.lossy.lossy_rule import Mismatch
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, make_decoder, reference
from tests.runtime.lossy.odd_tokens import OnlyOddAfterEven

VOCAB_SIZE = 8
ENDS = (5,)
MANIFEST = make_manifest(VOCAB_SIZE, max_context=4096, eos_token_ids=ENDS)
TARGET = FakeTarget(MANIFEST)
BY_GAP = np.array([-1.0, 1.0, *[0.0] * (len(NAMES) - 1)])  # a gap of one nat is as likely to matter as not
ANYTHING = np.array([-9.0, *[0.0] * len(NAMES)])


class Spelled:
    """A tokenizer: tokens 2 and 3 are the same word."""

    def decode(self, token_ids: list[int]) -> str:
        return {2: " Tar", 3: "tar "}.get(token_ids[0], str(token_ids[0]))


FIGURES = JudgeFigures(MANIFEST, cast(Tokenizer, Spelled()))


def decoded(
    weights: np.ndarray, threshold: float, num_tokens: int, constraint: OnlyOddAfterEven | None = None
) -> Request:
    strength = Judged("some.judge", threshold, Judge(weights, FIGURES))
    decoder = make_decoder(MANIFEST, RandomDrafter(VOCAB_SIZE, 16, seed=3))
    config = GenerationConfig(num_tokens, acceptance=strength.rule(ENDS, None), ignores_eos=True)
    request = decoder.submit([1, 2], config, constraint=constraint)
    decoder.finish(request)
    return request


def gaps(request: Request) -> list[float]:
    """Of tokens that are not the model's choice, nats below it; ends are the model's own."""
    found, text = [], request.token_ids[: request.num_prompt_tokens]
    for token_id in request.output_token_ids:
        logits = TARGET.logits_after(text)
        own = int(logits.argmax())
        assert (own in ENDS) == (token_id in ENDS)
        if token_id != own:
            found.append(float(logits[own] - logits[token_id]))
        text.append(token_id)
    return found


def test_what_stays_is_less_likely_to_matter_than_the_threshold() -> None:
    half = gaps(decoded(BY_GAP, 0.5, 2000))
    assert 0.9 < max(half) < 1.0
    assert len(half) > 50
    request = decoded(ANYTHING, 0.5, 2000)
    every = gaps(request)
    assert 1.5 < max(every) <= MOST_NATS
    report = request.acceptance.report(request.output_token_ids)
    assert report["num_changed"] == len(every)
    assert (report["rule"], report["strength"]) == ("judge", {"judge": "some.judge", "threshold": 0.5})


@pytest.mark.parametrize(("weights", "threshold"), [(ANYTHING, 0.0), (-ANYTHING, 0.5)])
def test_without_strength_or_with_a_strict_judge_it_is_exact(weights: np.ndarray, threshold: float) -> None:
    request = decoded(weights, threshold, 300)
    assert request.output_token_ids == reference(MANIFEST, [1, 2], GenerationConfig(300))
    assert request.acceptance.report(request.output_token_ids)["num_changed"] == 0


def test_a_grammar_forbids_what_the_judge_would_take() -> None:
    answer = decoded(ANYTHING, 0.5, 400, OnlyOddAfterEven(VOCAB_SIZE)).output_token_ids
    assert all(after % 2 for before, after in pairwise(answer) if before % 2 == 0)


class Said:
    """Choices behind one node of a tree."""

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree

    def probabilities(self, node: int) -> np.ndarray:
        return np.array([0.5, 0.25], np.float32)

    def hidden_state(self, node: int) -> np.ndarray:
        return np.array([7.0, 8.0], np.float32)


def test_a_judge_sees_target_and_draft() -> None:
    tree = DraftTree.root(1)
    tree.values[0] = 0.5
    child = tree.add(2, 0, "some source", 0.2)
    choices = cast(Choices, Said(tree))
    gap, ln_p, entropy, own_rank, rank, share, is_same = FIGURES.of(choices, 0, Mismatch(2, 3, 1, 0, 0.69, child))
    assert (gap, own_rank, rank, is_same) == (0.69, 0, 1, 1)
    assert (ln_p, entropy) == pytest.approx((np.log(0.5), 1.5 * np.log(2)))
    assert share == pytest.approx(0.4)
    undrafted = FIGURES.of(choices, 0, Mismatch(4, 3, 1, 0, 0.69, -1))
    assert undrafted[-2:].tolist() == [0, 0]
    telling = replace(MANIFEST, hidden_size=2)
    assert JudgeFigures(telling, cast(Tokenizer, Spelled())).of(choices, 0, Mismatch(2, 3, 1, 0, 0.69, 1))[
        -2:
    ].tolist() == [7, 8]


def test_an_engine_judges_by_a_file_of_its_model(engine: Engine, demo_folder: Path, tmp_path: Path) -> None:
    path, manifest = tmp_path / "demo.judge", engine.package.manifest
    size = JudgeFigures(manifest, engine.tokenizer).size
    JudgeFile(np.array([-9.0, *[0.0] * size])).write(path, manifest)
    lossy = LossyEngine.load(demo_folder, EngineConfig(is_calibrated=False), strength=Judged(str(path), 0.5))
    given_up = lossy.generate("# tar", GenerationConfig(60, ignores_eos=True)).given_up
    assert given_up["strength"] == {"judge": str(path), "threshold": 0.5}
    with pytest.raises(JudgeError, match="There is no file"):
        LossyEngine.load(demo_folder, EngineConfig(is_calibrated=False), strength=Judged(str(tmp_path / "none")))
    with pytest.raises(ConfigError, match=r"threshold is 2, but must be from 0 to 1"):
        Judged(str(path), 2)


@pytest.mark.parametrize(
    "wrong", [ANYTHING[1:], ANYTHING[None], ANYTHING.astype(np.float32), ANYTHING * np.nan, ANYTHING * 1e300]
)
def test_weights_that_cannot_be_are_refused(wrong: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "wrong.judge"
    JudgeFile(wrong).write(path, MANIFEST)
    with pytest.raises(JudgeError, match=r"does not hold 8 weights that are numbers: train it again"):
        JudgeFile.read(path, MANIFEST)


def test_files_of_other_models_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.judge"
    JudgeFile(ANYTHING).write(path, MANIFEST)
    np.testing.assert_array_equal(JudgeFile.read(path, MANIFEST).weights, ANYTHING)
    with pytest.raises(JudgeError, match="belongs to another model"):
        JudgeFile.read(path, replace(MANIFEST, hidden_size=2))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(JudgeError, match="is damaged: train it again"):
        JudgeFile.read(path, MANIFEST)
    path.write_bytes(bytes(8))
    with pytest.raises(JudgeError, match="is not a file of a judge"):
        JudgeFile.read(path, MANIFEST)

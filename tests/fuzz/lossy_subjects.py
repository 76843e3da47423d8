"""Files of the lossy wing, whose folder may be deleted: trained judges."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from reader_edge_runtime.acceptance import Choices
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.lossy.judge import Judge
from reader_edge_runtime.lossy.judge_figures import JudgeFigures, num_figures
from reader_edge_runtime.lossy.judge_file import JudgeFile
from reader_edge_runtime.lossy.lossy_rule import Mismatch
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.fuzz.drafting_subjects import spoil_arrays
from tests.fuzz.subject import Subject
from tests.runtime.lossy.test_judge import MANIFEST, Said, Spelled

TELLING = replace(MANIFEST, hidden_size=2)  # a package that tells states


def _samples(folder: Path) -> list[bytes]:
    JudgeFile(np.linspace(-1, 1, 1 + num_figures(TELLING))).write(folder / "sample", TELLING)
    return [(folder / "sample").read_bytes()]


def _judge(path: Path) -> None:
    """Weights that are taken come to a chance, whatever they are."""
    judge = Judge(JudgeFile.read(path, TELLING).weights, JudgeFigures(TELLING, cast(Tokenizer, Spelled())))
    said = cast(Choices, Said(DraftTree.chain([1, 2])))
    assert 0 <= judge.risk(said, 0, Mismatch(2, 3, 1, 0, 0.69, 1)) <= 1


LOSSY_SUBJECTS = {"judge": Subject(_samples, spoil_arrays, _judge)}
LOSSY_CORPUS = {"judge": {"nothing": b"", "another file": b"PRECIOUS" * 99}}

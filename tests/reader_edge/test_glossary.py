"""docs/reference/glossary.md explains the words of the reports."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reader_edge.terminal.checks import WORDS, check_pairs, glossary

ROOT = Path(__file__).parents[2]
PACKAGES = ("reader_edge", "runtime/reader_edge_runtime", "export/reader_edge_export")
NOT_IN_A_WHEEL = re.compile(r"(?<![\w/])(?:docs|scripts|benchmarks)/\w|\b(?:README|CONTRIBUTING|CHANGELOG)\b")
EXPLAINED = [line.split("|")[1].strip() for line in glossary().read_text().splitlines() if line.startswith("| ")]
FIGURES = [  # of every check that an export may make
    *("mean_kl_nats", "p99_kl_nats", "top1_agreement", "held_out_tokens", "source_weight_bits", "tree_logit_error"),
    *("logit_scale", "tree_rows_equal", "tree_decoding_spread", "greedy_tokens", "greedy_near_ties"),
    *("chats_compared", "chats_suited", "chats_different"),
    *("speculator_error", "speculator_agreement", "speculator_target_agreement"),
]


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_has_a_word_that_is_explained(figure: str) -> None:
    ((word, shown),) = check_pairs({figure: 1.0})
    assert word == WORDS[figure][0]
    assert word in EXPLAINED
    assert shown.startswith(("1", "by 1", "logits differ by 1", "100", "the source's own 1"))


def _texts(path: Path) -> Iterator[str]:
    """The texts of a module's code. Docstrings stay inside, but for those of commands, which are their help."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_shown = "commands" in path.parts or id(node) not in inside
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_shown:
            yield node.value


def test_nothing_that_is_shown_points_to_a_file_that_a_wheel_does_not_have() -> None:
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {(path.name, text) for path in modules for text in _texts(path) if NOT_IN_A_WHEEL.search(text)}
    assert len(modules) > 300
    assert found == {("checks.py", "docs/reference/glossary.md")}  # which the wheel has


def test_the_wheel_has_the_page_of_words() -> None:
    assert glossary().is_file()
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"docs/reference/glossary.md" = "reader_edge/glossary.md"' in project

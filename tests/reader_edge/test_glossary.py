"""docs/reference/glossary.md explains the words of the reports."""

from pathlib import Path

import pytest

from reader_edge.terminal.checks import GLOSSARY, WORDS, check_pairs

ROOT = Path(__file__).parents[2]
EXPLAINED = [line.split("|")[1].strip() for line in (ROOT / GLOSSARY).read_text().splitlines() if line.startswith("| ")]
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
    assert shown.startswith(("1", "by 1", "100", "the source's own 1"))

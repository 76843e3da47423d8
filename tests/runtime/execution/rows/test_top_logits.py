"""The best successors, chosen outside of the graph."""

import numpy as np

from reader_edge_runtime.execution.rows.top_logits import best_successors


def test_the_best_come_first_and_equals_by_id() -> None:
    logits = np.array([[[1, 5, 3, 5, 3, 3], [0, 0, 0, 0, 0, 0]]], np.float32)
    top_ids, top_logits = best_successors(logits, 4)
    np.testing.assert_array_equal(top_ids, [[[1, 3, 2, 4], [0, 1, 2, 3]]])
    np.testing.assert_array_equal(top_logits, [[[5, 5, 3, 3], [0, 0, 0, 0]]])


def test_rows_of_any_form_are_sorted_as_a_whole_sort_has_them() -> None:
    logits = np.random.default_rng(0).integers(0, 40, (2, 3, 200)).astype(np.float32)
    top_ids, _ = best_successors(logits, 8)
    np.testing.assert_array_equal(top_ids, np.argsort(-logits, axis=2, kind="stable")[..., :8])


def test_a_row_without_numbers_still_names_tokens() -> None:
    top_ids, _ = best_successors(np.full((1, 1, 5), np.nan, np.float32), 3)
    np.testing.assert_array_equal(top_ids, [[[0, 1, 2]]])

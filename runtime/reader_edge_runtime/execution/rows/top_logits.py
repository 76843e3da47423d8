"""The best successors of logit rows, where the graph does not name them."""

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Int64Array


def best_successors(logits: Float32Array, top_k: int) -> tuple[Int64Array, Float32Array]:
    """Ids and logits of the best, int64 and float32 (B, R, K), best first, equals by id; logits: float32 (B, R, V)."""
    top_ids = np.empty((*logits.shape[:2], top_k), np.int64)
    for row, ids in zip(logits.reshape(-1, logits.shape[2]), top_ids.reshape(-1, top_k), strict=True):
        least = np.partition(row, -top_k)[-top_k]
        better, equal = np.flatnonzero(row > least), np.flatnonzero(row == least)
        found = np.concatenate([better[np.argsort(-row[better], kind="stable")], equal])[:top_k]
        ids[:] = found if len(found) == top_k else np.argsort(-row, kind="stable")[:top_k]  # of rows with no numbers
    return top_ids, np.take_along_axis(logits, top_ids, axis=2)

"""A choice and its consequence in one, as decoding makes it."""

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.decoding.choosing.sampler import Sampler


def chosen(sampler: Sampler, logits: Float32Array, position: int) -> int:
    token_id = sampler.peek(logits, position)
    sampler.take(token_id)
    return token_id

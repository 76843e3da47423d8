"""The best of scores: those of topk, and the first of those that tie."""

import torch

from reader_edge_export.sources.layered_model import SteadyTopk, best


def test_the_best_are_those_of_topk() -> None:
    scores = torch.randn(50, 40, generator=torch.Generator().manual_seed(0), requires_grad=True)
    values, places = best(scores, 6)
    expected, expected_places = scores.topk(6)
    assert torch.equal(values, expected)
    assert torch.equal(places, expected_places)
    values.sum().backward()
    assert scores.grad is not None
    assert scores.grad.sum() == 50 * 6


def test_the_first_of_those_that_tie_are_chosen() -> None:
    scores = torch.tensor([[0.0, 1, 3, 1, 1 + 1e-7, 0], [0.0] * 6, [2, 2 - 1e-5, 2, 2 + 1e-7, 2, -3]])
    assert best(scores, 3)[1].tolist() == [[2, 1, 3], [0, 1, 2], [0, 2, 3]]


def test_modules_choose_so_while_it_is_entered() -> None:
    scores = torch.zeros(1, 300)
    with SteadyTopk():
        chosen = [torch.topk(scores, k=4, dim=-1), scores.topk(4), torch.topk(scores, 4, dim=1)]
    assert [places.tolist() for _, places in chosen] == [[[0, 1, 2, 3]]] * 3
    assert isinstance(scores.topk(4), torch.return_types.topk)

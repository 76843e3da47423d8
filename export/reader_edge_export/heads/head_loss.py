"""What a head is trained by: its two guesses, against what the target thought at these places."""

import torch

from reader_edge_export.heads.examples import Examples
from reader_edge_export.heads.head_module import HeadModule
from reader_edge_export.heads.training import distance

BATCH = 256  # places of a step
LATER = 0.7  # weight of a second guess, which matters only where the first was right


class HeadLoss:
    """The loss of each step; every epoch sees each example once, in an order of its own."""

    def __init__(self, module: HeadModule, examples: Examples) -> None:
        self._module = module
        self._examples = examples
        self.steps_an_epoch = -(-len(examples) // BATCH)

    def __call__(self, step: int) -> torch.Tensor:
        batch = self._examples.at(self._places(step))
        first, second = self._module(batch.states.float(), batch.pending, batch.guess)
        return distance(first, batch.top, batch.share) + LATER * distance(second, batch.next_top, batch.next_share)

    def _places(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(step // self.steps_an_epoch)
        start = step % self.steps_an_epoch * BATCH
        return torch.randperm(len(self._examples), generator=generator)[start : start + BATCH]

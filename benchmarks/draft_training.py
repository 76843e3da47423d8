"""Training of small draft models: what the target thought next is what they learn, not only what it chose."""

import math
import time
from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.draft_module import DraftModule
from benchmarks.draft_texts import Answers, DraftTexts
from benchmarks.measuring import say
from reader_edge_export.heads.examples import frequent_ids

Tensor = torch.Tensor

_TEXTS = 12  # of a step
_RATE_OF_ROWS, _RATE, _DECAY = 1.5e-3, 3e-3, 0.05
_WARM_UP_STEPS = 60
_MOST_FREQUENT, _MOST_OTHERS = 6144, 2048
_SMOOTHING = 0.98
_STEPS_TOLD = 50


class DraftTraining:
    """A draft model in training, for so many seconds of processor time.

    num_steps, spent: steps and seconds so far. loss: of late.
    """

    def __init__(self, module: DraftModule, answers: Answers, seconds: float) -> None:
        self.module = module
        self.num_steps, self.spent, self.loss = 0, 0.0, 0.0
        self._seconds = seconds
        self._generator = torch.Generator().manual_seed(0)
        self._answers = answers
        self._batches = self._drawn()
        self._distance = Distance(answers, len(module.vocabulary), self._generator)
        rows = module.vocabulary
        others = [parameter for parameter in module.parameters() if parameter is not rows]
        groups = [{"params": [rows], "weight_decay": 0.0}, {"params": others, "weight_decay": _DECAY}]
        self._optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)

    @property
    def num_epochs(self) -> float:
        return self.num_steps * _TEXTS / len(self._answers)

    @property
    def is_over(self) -> bool:
        return self.spent >= self._seconds

    def step(self) -> None:
        began = time.process_time()
        share = (
            min(1.0, (self.num_steps + 1) / _WARM_UP_STEPS) * (1 + math.cos(math.pi * self.spent / self._seconds)) / 2
        )
        for group, rate in zip(self._optimizer.param_groups, (_RATE_OF_ROWS, _RATE), strict=True):
            group["lr"] = share * rate
        texts = next(self._batches)
        said = self.module(texts, texts.drawn_depths(self._generator))
        loss = self._distance(said, self.module.vocabulary, texts)
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self._optimizer.step()
        self.num_steps += 1
        value = loss.item()
        self.loss = value if self.num_steps == 1 else _SMOOTHING * self.loss + (1 - _SMOOTHING) * value
        self.spent += time.process_time() - began

    def _drawn(self) -> Iterator[DraftTexts]:
        """Every epoch has each answer once, but for a few at its end."""
        while True:
            order = torch.randperm(len(self._answers), generator=self._generator).tolist()
            for start in range(0, max(len(order) - _TEXTS, 0) + 1, _TEXTS):
                yield DraftTexts.of([self._answers[number] for number in order[start : start + _TEXTS]])


def train(*trainings: DraftTraining) -> None:
    """Train side by side, in turn, each until its time is over."""
    while going := [training for training in trainings if not training.is_over]:
        training = min(going, key=lambda each: each.spent)
        training.step()
        if training.num_steps % _STEPS_TOLD == 0:
            say(f"{training.num_epochs:.1f} epochs, loss {training.loss:.3f}, {training.spent:.0f} s")


class Distance:
    """Cross entropy against the target's best successors, over the tokens it names most and some of the others.

    Those drawn stand for all others, and so count as many times as these are more (sampled softmax).
    """

    def __init__(self, answers: Answers, vocab_size: int, generator: torch.Generator) -> None:
        self._frequent = torch.from_numpy(frequent_ids(answers, vocab_size, _MOST_FREQUENT)).long()
        self._numbers = torch.full((vocab_size,), -1)
        self._numbers[self._frequent] = torch.arange(len(self._frequent))
        self._others = (self._numbers < 0).nonzero().flatten()
        self._generator = generator

    def __call__(self, said: Tensor, vocabulary: Tensor, texts: DraftTexts) -> Tensor:
        """said: what goes into the logit head at the places of texts."""
        drawn = self._others[torch.randperm(len(self._others), generator=self._generator)[:_MOST_OTHERS]]
        weight = math.log(max(len(self._others), 1) / max(len(drawn), 1))
        bias = torch.cat([torch.zeros(len(self._frequent)), torch.full((len(drawn),), weight)])
        logits = nn.functional.linear(said, vocabulary[torch.cat([self._frequent, drawn])], bias)
        numbers = self._numbers[texts.top]
        likely = torch.log_softmax(logits, 1).gather(1, numbers.clamp(min=0))
        return -(texts.share * (numbers >= 0) * likely).sum(1).mean()

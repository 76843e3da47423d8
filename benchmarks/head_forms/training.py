"""Training of a form for so much processor time, with the losses and rates of heads/training.py."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.head_forms.form import Form
from benchmarks.head_forms.places import Places, batches
from reader_edge_export.heads.training import BATCH, DECAY, LATER, RATE, distance, learning_rate


@dataclass(frozen=True, slots=True)
class Trained:
    """epochs: times that every place was seen."""

    steps: int
    epochs: float


def train_form(form: Form, texts: Sequence[Places], seconds: float) -> Trained:
    """Train in place. seconds: of processor time, of all threads."""
    optimizer = torch.optim.AdamW(form.parameters(), lr=RATE, weight_decay=DECAY)
    steps = num_seen = 0
    began = time.process_time()
    for batch in batches(texts, BATCH, form.reads_text):
        done = (time.process_time() - began) / seconds
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(done, done)
        loss = form_loss(form, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(form.parameters(), 1.0)
        optimizer.step()
        steps += 1
        num_seen += int((batch.share[:, :, 0].sum(-1) > 0).sum())
    return Trained(steps, num_seen / sum(len(text.pending) for text in texts))


def form_loss(form: Form, batch: Places) -> torch.Tensor:
    logits = form.logits(batch)
    losses = [
        LATER**depth * distance(logits[:, :, depth], batch.top[:, :, depth], batch.share[:, :, depth])
        for depth in range(form.depth)
    ]
    return torch.stack(losses).sum()

"""Trains the demo model: tokenizer, training loop, loss log, evaluation and checkpoint.

Training has two phases (``PHASES``): all pages first, then without the tldr pages that only
point to other pages. Everything random follows from ``SEED``, and every phase has a fixed number of
steps, so the same command trains the same model up to the rounding of the machine's kernels.
An interrupted run goes on from ``WORK/state.pt``.

    python -m models.train_demo --corpora corpora --out models/demo --work runs/demo
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from models.bpe import END_OF_TEXT_ID, train_tokenizer
from models.checkpoint import MAX_POSITIONS, VOCAB_SIZE, new_model, save_checkpoint
from models.corpus import Document, split_documents, training_rows
from models.evaluation import WINDOW, Encoded, evaluate

SEED = 20240607
TOKENS_PER_STEP = 2048
#: Row length of each step, in turn. Most steps use short rows, which are cheapest; the others
#: show the model every position up to the longest context that its configuration promises.
ROW_LENGTHS = (512, 512, 1024, 512, 512, 512, 1024, 512, 512, MAX_POSITIONS)
WEIGHT_DECAY = 0.1
LOG_EVERY = 20
PROBE_EVERY = 200
SAVE_EVERY = 400
#: Held-out documents of each kind (tldr, documentation) in the log's held-out column, each cut
#: to one window: enough to see the trend, cheap enough to repeat.
PROBE_DOCUMENTS = 16


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of training with its own documents and its own learning-rate schedule."""

    steps: int
    warmup_steps: int
    cosine_steps: int
    cool_down_steps: int
    peak_rate: float
    final_rate: float
    #: How often a tldr page is repeated for every pass over the documentation. tldr pages are
    #: short and are what the demo prompts ask for.
    tldr_repeats: int
    #: Whether the tldr pages that only point to other pages (aliases, mostly) are trained on.
    pointer_pages: bool

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, a cosine aimed at ``cosine_steps``, a linear cool-down to the end.

        The cool-down starts from wherever the cosine then is, so that a phase of fewer steps
        than ``cosine_steps`` still ends at ``final_rate``, and may be resumed with another end
        as long as its cool-down has not begun.
        """
        if step < self.warmup_steps:
            return self.peak_rate * (step + 1) / self.warmup_steps
        turn = max(self.warmup_steps, self.steps - self.cool_down_steps)
        progress = (min(step, turn, self.cosine_steps - 1) - self.warmup_steps) / (
            self.cosine_steps - 1 - self.warmup_steps
        )
        span = self.peak_rate - self.final_rate
        rate = self.final_rate + span * 0.5 * (1 + math.cos(math.pi * progress))
        remaining = min(1.0, (self.steps - 1 - step) / max(1, self.steps - 1 - turn))
        return self.final_rate + (rate - self.final_rate) * remaining

    def select(self, documents: list[Encoded]) -> list[NDArray[np.int32]]:
        """The tokens of one pass over the documents of this phase."""
        return [
            tokens
            for document, tokens in documents
            if self.pointer_pages or not document.is_pointer
            for _ in range(self.tldr_repeats if document.corpus == "tldr" else 1)
        ]


PHASES = (
    Phase(
        steps=1900,
        warmup_steps=150,
        cosine_steps=2600,
        cool_down_steps=650,
        peak_rate=1.2e-3,
        final_rate=1e-4,
        tldr_repeats=2,
        pointer_pages=True,
    ),
    Phase(
        steps=2000,
        warmup_steps=60,
        cosine_steps=4000,
        cool_down_steps=1100,
        peak_rate=9e-4,
        final_rate=1e-5,
        tldr_repeats=3,
        pointer_pages=False,
    ),
)
TOTAL_STEPS = sum(phase.steps for phase in PHASES)


def make_optimizer(model: LlamaForCausalLM) -> torch.optim.AdamW:
    """AdamW that decays matrices but not the gains of the norms."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=True)


def encode(tokenizer: Tokenizer, documents: list[Document]) -> list[Encoded]:
    """Encodes each document and ends it with the end-of-text token."""
    encodings = tokenizer.encode_batch([document.text for document in documents])
    return [
        (document, np.array([*encoding.ids, END_OF_TEXT_ID], dtype=np.int32))
        for document, encoding in zip(documents, encodings, strict=True)
    ]


def batches(phase: Phase, seed: list[int], documents: list[Encoded]) -> Iterator[torch.Tensor]:
    """Yields one batch a step for ever; every row length draws from its own stream."""
    pool = phase.select(documents)
    streams = {
        length: training_rows(pool, length, np.random.default_rng([*seed, length])) for length in set(ROW_LENGTHS)
    }
    for length in itertools.cycle(ROW_LENGTHS):
        rows = list(itertools.islice(streams[length], TOKENS_PER_STEP // length))
        yield torch.from_numpy(np.stack(rows).astype(np.int64))


def schedule(documents: list[Encoded], first: int) -> Iterator[tuple[float, torch.Tensor]]:
    """Yields learning rate and batch of every step of all phases, from step ``first`` on."""
    for index, phase in enumerate(PHASES):
        seed = [SEED, index] if index else [SEED]
        stream = itertools.islice(batches(phase, seed, documents), phase.steps)
        skipped = min(first, phase.steps)
        first -= skipped
        for step, batch in enumerate(itertools.islice(stream, skipped, None), skipped):
            yield phase.learning_rate(step), batch


def probe_documents(held_out: list[Encoded]) -> list[Encoded]:
    """The fixed sample of held-out documents that the log follows."""
    tldr = [pair for pair in held_out if pair[0].corpus == "tldr"]
    other = [pair for pair in held_out if pair[0].corpus != "tldr"]
    other.sort(key=lambda pair: pair[0].key)
    sample = tldr[:PROBE_DOCUMENTS] + other[:PROBE_DOCUMENTS]
    return [(document, tokens[: WINDOW + 1]) for document, tokens in sample]


def train(
    model: LlamaForCausalLM,
    tokenizer: Tokenizer,
    documents: tuple[list[Encoded], list[Encoded]],
    work: Path,
) -> None:
    """Runs the training loop; the log, the state and a checkpoint go to ``work`` as it goes."""
    optimizer = make_optimizer(model)
    probe = probe_documents(documents[1])
    state_file, log_file = work / "state.pt", work / "training_log.csv"
    first = 0
    if state_file.exists():
        state = torch.load(state_file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = int(state["step"])
    else:
        log_file.write_text("step,tokens,train_loss,learning_rate,held_out_loss\n")

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.model(input_ids=batch[:, :-1], use_cache=False).last_hidden_state
            logits = model.lm_head(hidden)
        return cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())

    # One static graph for each row length: quicker than one graph of dynamic shape.
    compiled = torch.compile(loss_of, dynamic=False)
    recent: list[float] = []
    started = time.monotonic()
    for done, (rate, batch) in enumerate(schedule(documents[0], first), first + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = compiled(batch)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(loss.item())
        if done % LOG_EVERY == 0 or done == TOTAL_STEPS:
            probed = ""
            if done % PROBE_EVERY == 0 or done == TOTAL_STEPS:
                probed = f"{evaluate(model, probe)['all'].loss:.4f}"
            mean = sum(recent) / len(recent)
            recent.clear()
            with log_file.open("a", newline="") as stream_out:
                csv.writer(stream_out, lineterminator="\n").writerow(
                    [done, done * TOKENS_PER_STEP, f"{mean:.4f}", f"{rate:.6f}", probed]
                )
            speed = (done - first) * TOKENS_PER_STEP / (time.monotonic() - started)
            print(f"{done}/{TOTAL_STEPS} loss {mean:.4f} {probed} {speed:.0f} tokens/s", flush=True)
        if done % SAVE_EVERY == 0 or done == TOTAL_STEPS:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": done}, state_file.with_suffix(".partial"))
            state_file.with_suffix(".partial").rename(state_file)
            save_checkpoint(model, tokenizer, work / "checkpoint")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--corpora", type=Path, required=True, help="folder of NAME.txt.xz")
    parser.add_argument("--out", type=Path, required=True, help="where the results go")
    parser.add_argument("--work", type=Path, required=True, help="state of the run")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)

    train_set, held_out_set = split_documents(arguments.corpora)
    tokenizer = train_tokenizer((document.text for document in train_set), VOCAB_SIZE)
    documents = (encode(tokenizer, train_set), encode(tokenizer, held_out_set))
    model = new_model()
    train(model, tokenizer, documents, arguments.work)

    # Score what is published: the weights after rounding to bfloat16, computed in float32.
    save_checkpoint(model, tokenizer, arguments.out / "checkpoint")
    published = LlamaForCausalLM.from_pretrained(arguments.out / "checkpoint", dtype=torch.float32)
    scores = evaluate(published, documents[1])
    report = {
        "steps": TOTAL_STEPS,
        "tokens_trained": TOTAL_STEPS * TOKENS_PER_STEP,
        "parameters": sum(p.numel() for p in model.parameters()),
        "window": WINDOW,
        "corpora": {name: score.summary() for name, score in sorted(scores.items())},
    }
    (arguments.out / "evaluation.json").write_text(json.dumps(report, indent=2) + "\n")
    log = (arguments.work / "training_log.csv").read_text()
    (arguments.out / "training_log.csv").write_text(log)


if __name__ == "__main__":
    main()

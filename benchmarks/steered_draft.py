"""What a draft model gains where its target steers it (after arXiv 2511.09844); prints Markdown.

    python -m benchmarks.steered_draft PACKAGE OUT ANSWERS [--minutes M]

OUT and ANSWERS are of `benchmarks.distilled_draft`. Two copies of that draft model learn on for M minutes of processor
time each, step by step in turn, from the same texts in the same order: one as it is, and one to whose embeddings a
linear map of the target's hidden state is added, of the last one known where a draft begins. Told is how often they
guess what the target says in answers held out, so many tokens behind that state, where the tokens before are right.
"""

import argparse
import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from benchmarks.draft_module import DraftModule, Steering
from benchmarks.draft_texts import DraftTexts, read_answers
from benchmarks.draft_training import DraftTraining, train
from benchmarks.tables import table
from reader_edge_export.quiet import quiet_libraries
from reader_edge_runtime.assembly import open_package

DEPTHS = 4

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Guesses:
    """top1, top4: shares of the same places by depth, from 1 on. chain: tokens of DEPTHS before the first wrong one."""

    top1: list[float]
    top4: list[float]
    chain: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="of the target")
    parser.add_argument("draft", type=Path, help="folder of the draft model")
    parser.add_argument("answers", type=Path, help="folder that keeps what it learned from")
    parser.add_argument("--minutes", type=float, default=5.0, help="of processor time, for each training")
    options = parser.parse_args()
    learned, held_out = read_answers(open_package(options.package), options.answers)
    torch.set_num_threads(1)
    with quiet_libraries():
        draft = DraftModule(LlamaForCausalLM.from_pretrained(options.draft))
    states = torch.cat([torch.from_numpy(answer.states[:8]).float() for answer in learned])
    control = copy.deepcopy(draft)
    steered = DraftModule(copy.deepcopy(draft.draft), Steering(states, draft.vocabulary.shape[1]))
    train(*(DraftTraining(each, learned, 60 * options.minutes) for each in (control, steered)))
    texts = DraftTexts.of(held_out)
    modules = {"draft": draft, "trained on": control, "trained on, steered": steered}
    header = [
        "best guess / best four at depth",
        *map(str, range(1, DEPTHS + 1)),
        f"of a chain of {DEPTHS}",
        "parameters",
    ]
    print("\n".join(table(header, [_row(name, module, texts) for name, module in modules.items()])))


def _row(name: str, module: DraftModule, texts: DraftTexts) -> list[str]:
    found = measured(module, texts)
    shares = [f"{best:.3f} / {few:.3f}" for best, few in zip(found.top1, found.top4, strict=True)]
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    return [name, *shares, f"{found.chain:.2f}", f"{num_parameters:,}"]


def measured(module: DraftModule, texts: DraftTexts) -> Guesses:
    """Every place but the first few of an answer is met once at each depth, and begins a chain once."""
    right: list[list[Tensor]] = [[] for _ in range(DEPTHS)]
    chains = []
    for first in range(DEPTHS):
        depths = texts.even_depths(DEPTHS, first)
        is_right = module.guesses(texts, depths) == texts.top[:, :1]
        has_all = texts.numbers >= DEPTHS - 1
        for number in range(DEPTHS):
            right[number].append(is_right[has_all & (depths == number + 1)])
        chains.append(_chain_lengths(is_right[:, 0], texts.numbers, has_all & (depths == 1)))
    by_depth = [torch.cat(parts).float() for parts in right]
    top1 = [each[:, 0].mean().item() for each in by_depth]
    top4 = [each.amax(1).mean().item() for each in by_depth]
    return Guesses(top1, top4, torch.cat(chains).float().mean().item())


def _chain_lengths(is_right: Tensor, numbers: Tensor, begins: Tensor) -> Tensor:
    """How many guesses in a row come true from each place on that begins a chain and has so many behind it."""
    begun = begins.nonzero().flatten()
    begun = begun[begun + DEPTHS <= len(numbers)]
    begun = begun[numbers[begun + DEPTHS - 1] == numbers[begun] + DEPTHS - 1]
    return is_right[begun[:, None] + torch.arange(DEPTHS)].long().cumprod(1).sum(1)


if __name__ == "__main__":
    main()

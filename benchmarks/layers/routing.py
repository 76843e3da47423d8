"""What passes of a mixture take where their nodes are drafted text, and where they are random tokens.

    python -m benchmarks.layers.routing FOLDER PACKAGE [--rounds 40]

FOLDER: the model, whose routers say which experts are chosen. PACKAGE: what was exported of it, whose passes are timed
on one thread, by the processor time that they take. Drafted text is what the model says next after texts of its own.
The planner times tokens that are drawn at random.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from reader_edge_export.quiet import quiet_libraries
from reader_edge_export.sources.layer_experts import expert_modules
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass

NUM_NODES = (1, 2, 4, 8, 16)
NUM_TEXTS, PAST = 8, 64  # tokens that a pass stands behind
KINDS = ("drafted", "random")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("package", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    with quiet_libraries():
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(options.folder).float().eval()
    rng = np.random.default_rng(0)
    texts = [_said(model, rng) for _ in range(NUM_TEXTS)]
    passes = {
        "drafted": texts,
        "random": [
            [*text[:PAST], *map(int, rng.integers(3, model.config.vocab_size, max(NUM_NODES)))] for text in texts
        ],
    }
    read = {kind: _experts_read(model, passes[kind]) for kind in KINDS}
    took = _milliseconds(HostTarget.open(ModelPackage.open(options.package), threads=1), passes, options.rounds)
    print("| nodes | experts, drafted | random | ms, drafted | random | as often as one, drafted | random |")
    print("|---|---|---|---|---|---|---|")
    for index, num_nodes in enumerate(NUM_NODES):
        cells = [*(f"{read[kind][index]:.2f}" for kind in KINDS), *(f"{took[kind][index]:.2f}" for kind in KINDS)]
        cells += [f"{took[kind][index] / took[kind][0]:.2f}" for kind in KINDS]
        print(f"| {num_nodes} | {' | '.join(cells)} |")


def _said(model: PreTrainedModel, rng: np.random.Generator) -> list[int]:
    """A few random tokens and what the model says after them, sampled until where drafts begin, greedy behind."""
    begin = torch.from_numpy(rng.integers(3, model.config.vocab_size, (1, 4)))
    torch.manual_seed(int(rng.integers(1 << 30)))
    both: Any = model
    until = both.generate(begin, do_sample=True, min_new_tokens=PAST - 4, max_new_tokens=PAST - 4)
    said = both.generate(until, do_sample=False, min_new_tokens=max(NUM_NODES), max_new_tokens=max(NUM_NODES))
    token_ids: list[int] = said[0].tolist()
    return token_ids


def _experts_read(model: PreTrainedModel, texts: list[list[int]]) -> list[float]:
    """How many experts of a layer nodes go through, on average, for each number of nodes."""
    chosen: list[torch.Tensor] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, given: chosen.append(given[1]))
        for _, module in expert_modules(model)
    ]
    with torch.no_grad():
        for text in texts:
            model(torch.tensor([text]))
    for hook in hooks:
        hook.remove()
    return [
        float(np.mean([len(experts[PAST : PAST + num_nodes].unique()) for experts in chosen]))
        for num_nodes in NUM_NODES
    ]


def _milliseconds(target: HostTarget, passes: dict[str, list[list[int]]], rounds: int) -> dict[str, list[float]]:
    """Medians of passes, interleaved, for each kind and number of nodes."""
    cache = target.new_cache(1, PAST + max(NUM_NODES))
    took: dict[tuple[str, int], list[float]] = {(kind, num): [] for kind in KINDS for num in NUM_NODES}
    for number in range(rounds):
        text = number % NUM_TEXTS
        cache.cut(0, 0)
        past = passes["drafted"][text][:PAST]
        target.forward(cache, Pass(0, [DraftTree.chain(past)], [[0]], num_kept=PAST))
        cache.commit(0, range(PAST))
        for (kind, num_nodes), times in took.items():
            wanted = Pass(0, [DraftTree.chain(passes[kind][text][PAST : PAST + num_nodes])], [range(num_nodes)])
            begin = time.thread_time()
            target.forward(cache, wanted)
            times.append(1e3 * (time.thread_time() - begin))
    return {kind: [float(np.median(took[kind, num])) for num in NUM_NODES] for kind in KINDS}


if __name__ == "__main__":
    main()

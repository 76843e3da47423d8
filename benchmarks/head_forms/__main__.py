"""Forms of trained heads beside one another: the MLP that there is, SpecFormer's and EAGLE's; prints Markdown.

    reader-edge train-drafter PACKAGE -o my.head        # which leaves my.head.training
    reader-edge bench record PACKAGE --prompts PROMPTS -n 128 -o RECORDING.jsonl
    python -m benchmarks.head_forms PACKAGE my.head.training RECORDING.jsonl [--minutes 4] [--rounds 40]

All learn from the same answers that the package wrote itself, each for so many minutes of one thread's processor time,
and are measured on the same held out ones, in float32. A step is timed with its products in eight bits.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.head_forms.acceptance import measure_form
from benchmarks.head_forms.chain import ChainForm
from benchmarks.head_forms.form import Form
from benchmarks.head_forms.parallel import ParallelForm
from benchmarks.head_forms.places import Places, places_of
from benchmarks.head_forms.replays import BUDGETS, TASKS, Replayed, Replays
from benchmarks.head_forms.report import (
    TARGETS,
    DepthResult,
    FormResult,
    Tokens,
    acceptance_table,
    clock_table,
    depth_table,
)
from benchmarks.head_forms.sequential import SequentialForm
from benchmarks.head_forms.step_time import open_step, step_seconds
from benchmarks.head_forms.training import train_form
from benchmarks.measuring import say
from benchmarks.replayed_states import passes_saved
from reader_edge_export.heads.examples import Int32Array, frequent_ids
from reader_edge_export.heads.head_module import HeadModule
from reader_edge_export.heads.held_out import held_out_apart
from reader_edge_export.heads.self_written import SelfWritten
from reader_edge_export.heads.train_drafter import new_module
from reader_edge_export.heads.vocabulary_rows import logit_head_rows
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.assembly import open_package, settled_target
from reader_edge_runtime.drafting.sources.head_sizes import HeadSizes
from reader_edge_runtime.target import Target

FORMS: dict[type[Form], Sequence[int]] = {SequentialForm: (1, 2), ParallelForm: (4,), ChainForm: (1, 2, 3, 4)}  # depths
NUM_IDS = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("written", type=Path, help="what train-drafter had the package write")
    parser.add_argument("recording", type=Path)
    parser.add_argument("--minutes", type=float, default=4, help="processor time of each training")
    parser.add_argument("--rounds", type=int, default=40, help="times that each step is timed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    study = Study(options.package, options.written)
    replays = Replays(options.recording, study.package, study.target)
    say(f"{replays.num_answers} recorded answers, {replays.num_tokens} tokens")
    step_s = study.step_seconds(options.rounds)
    without = replays.without()
    forms, results = list[FormResult](), list[DepthResult]()
    for kind, depths in FORMS.items():
        form, result = study.trained(kind, 60 * options.minutes)
        forms.append(result)
        guesses = replays.guesses(form, study.ids)
        for depth in depths:
            found = replays.with_guesses(guesses, depth)
            saved = {num_nodes: passes_saved(without[num_nodes], found[num_nodes]) for num_nodes in BUDGETS}
            times = {target.hidden: step_s[kind, depth, target.hidden] for target in TARGETS.values()}
            results.append(DepthResult(result, depth, times, tokens_of(replays, found), saved))
        say("\n".join(depth_table(results, tokens_of(replays, without))))
    tables = (
        acceptance_table(forms),
        *(each(results, tokens_of(replays, without)) for each in (depth_table, clock_table)),
    )
    print("\n\n".join("\n".join(lines) for lines in tables))


class Study:
    """What the package wrote, parted into what is learned from and what is measured on; trains and times forms."""

    def __init__(self, package: Path, written: Path) -> None:
        self.package = open_package(package)
        self.target: Target = settled_target(self.package, EngineConfig(is_probed=False))[0]
        answers = [answer for part in SelfWritten(written, self.package.fingerprint()).parts() for answer in part]
        learned, held_out = held_out_apart(answers)
        vocab_size = self.package.manifest.vocab_size
        self.ids: Int32Array = frequent_ids(learned, vocab_size, NUM_IDS)
        self._rows = torch.from_numpy(logit_head_rows(self.target, learned, self.ids))
        self._learned: list[Places] = places_of(learned, self.ids, vocab_size)
        self._held_out: list[Places] = places_of(held_out, self.ids, vocab_size)
        counts = (sum(len(text.pending) for text in texts) for texts in (self._learned, self._held_out))
        say("{} places to learn from, {} held out".format(*counts))

    def trained(self, kind: type[Form], seconds: float) -> tuple[Form, FormResult]:
        """One trained for so much processor time."""
        form = kind(new_module(torch.cat([text.states for text in self._learned]), self._rows))
        trained = train_form(form, self._learned, seconds)
        result = FormResult(form.name, form.num_parameters, trained, measure_form(form, self._held_out))
        say(f"{result}")
        return form, result

    def step_seconds(self, rounds: int) -> dict[tuple[type[Form], int, int], float]:
        """By form, depth and hidden size. What they learned plays no part."""
        wanted = [
            (kind, depth, t.hidden) for kind, depths in FORMS.items() for depth in depths for t in TARGETS.values()
        ]
        return step_seconds(self.target, {each: open_step(untrained(*each)) for each in wanted}, rounds)


def untrained(kind: type[Form], depth: int, hidden: int) -> Form:
    form = kind(HeadModule(HeadSizes(hidden, NUM_IDS), torch.zeros(hidden), torch.ones(hidden)))
    form.depth = depth
    return form


def tokens_of(replays: Replays, found: Replayed) -> Tokens:
    return {(n, task): replays.tokens_a_pass(found, n, task) for n in BUDGETS for task in TASKS}


if __name__ == "__main__":
    main()

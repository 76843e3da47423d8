"""Whether a trained judge knows better than the gap alone which tokens matter (AutoJudge, arXiv 2504.20039).

    python -m benchmarks.lossy.judge PACKAGE [--tasks 300] [--seed 1]

Of generated tasks that the package answers rightly, every token that it thinks a tenth as likely as its choice, or
more, takes the choice's place once, ends left out; the package goes on greedily, and the token matters where the answer
is then wrong. Judges are logistic regressions over ever more: the gap; the kind of task, as a control; the token's rank
and place, and the best token's share; the hidden state of the node before. They are compared by the area under the
curve on questions that they have not seen, in five folds: over all, and within each kind, where knowing the kind is no
help. A kind of which every token matters has none.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from reader_edge.lossy.tasks import Task, tasks
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.acceptance import AcceptanceRule, Choices
from reader_edge_runtime.arrays import Float64Array

LEAST_RATIO = 0.1
FOLDS, NUM_KINDS, MAX_TOKENS = 5, 5, 64
PENALTIES = (1.0, 30.0, 1000.0)
JUDGES = ("gap", "and kind of task", "and rank, share, place", "and hidden state")


@dataclass(frozen=True)
class Mismatch:
    """A token in place of the choice: of which question, what was known of it, and whether it mattered."""

    question: int
    kind: str
    gap: float
    figures: tuple[float, ...]
    state: Float64Array
    matters: bool


class Watching(AcceptanceRule):
    """Takes the model's choice, and notes what it might have taken.

    alternatives: place in the answer, token id, gap, figures, hidden state of the node before.
    """

    name = "watching"
    is_exact = wants_hidden_states = True

    def __init__(self) -> None:
        self.alternatives: list[tuple[int, int, float, tuple[float, ...], Float64Array]] = []
        self._place = 0

    def next_token(self, choices: Choices, node: int) -> int:
        own = choices.peek(node)
        self._place += 1  # of the answer's tokens, behind the prefill's one
        token_ids, logits = choices.successors(node)
        state = choices.hidden_state(node).astype(np.float64)
        shares = np.exp(logits - logits[0]) / np.exp(logits - logits[0]).sum()
        for rank in range(1, len(token_ids)):
            gap = float(logits[0] - logits[rank])
            if gap <= -math.log(LEAST_RATIO):
                figures = (float(rank), float(shares[0]), float(self._place))
                self.alternatives.append((self._place, int(token_ids[rank]), gap, figures, state))
        return own


def mined(engine: Engine, every: Sequence[Task]) -> tuple[list[Mismatch], int]:
    """Mismatches of tasks whose answers are right, and how many those are."""
    found, num_right = [], 0
    for question, task in enumerate(every):
        is_chat = task.is_question and engine.tokenizer.has_chat_template
        prompt = engine.encode_prompt([{"role": "user", "content": task.prompt}] if is_chat else task.prompt)
        config = GenerationConfig(MAX_TOKENS, stop=task.stop, is_drafted=False)
        watching = Watching()
        own = engine.generate(prompt, replace(config, acceptance=watching))
        if not task.is_right(own.text):
            continue
        num_right += 1
        for place, token_id, gap, figures, state in watching.alternatives:
            if token_id in engine.package.manifest.eos_token_ids:
                continue
            begun = [*own.token_ids[:place], token_id]
            said = engine.tokenizer.decode(begun)
            if not any(stop in said for stop in task.stop):
                said += engine.generate([*prompt, *begun], replace(config, max_tokens=MAX_TOKENS - place)).text
            answer = min((said.partition(stop)[0] for stop in task.stop), key=len)
            found.append(Mismatch(question, task.kind, gap, figures, state, not task.is_right(answer)))
    return found, num_right


def inputs(found: Sequence[Mismatch], judge: str) -> Float64Array:
    """What a judge sees of each mismatch, (n, features)."""
    kinds = sorted({each.kind for each in found})
    columns = [
        np.array([[each.gap] for each in found]),
        np.array([[float(each.kind == kind) for kind in kinds] for each in found]),
        np.array([each.figures for each in found]),
        np.array([each.state for each in found]),
    ]
    return np.concatenate(columns[: JUDGES.index(judge) + 1], axis=1)


def held_out_scores(x: Float64Array, y: Float64Array, questions: Float64Array, penalty: float) -> Float64Array:
    """What a judge that has not seen its question says of each mismatch, (n,)."""
    scores = np.zeros(len(y))
    for fold in range(FOLDS):
        held = folds_of(questions) == fold
        mean, spread = x[~held].mean(0), x[~held].std(0) + 1e-9
        weights = fitted((x[~held] - mean) / spread, y[~held], penalty)
        scores[held] = (x[held] - mean) / spread @ weights[1:] + weights[0]
    return scores


def folds_of(questions: Float64Array) -> Float64Array:
    """The fold of each question, (n,): kinds come in turn, and each fold has all of them."""
    return questions // NUM_KINDS % FOLDS


def fitted(x: Float64Array, y: Float64Array, penalty: float) -> Float64Array:
    """Weights of a logistic regression with an L2 penalty, the intercept first, by Newton's method."""
    x = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    ridge = penalty * np.eye(x.shape[1])
    ridge[0, 0] = 1e-6
    weights = np.zeros(x.shape[1])
    for _ in range(25):
        shares = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        slope = x.T @ (shares - y) + ridge @ weights
        weights -= np.linalg.solve(x.T @ (x * (shares * (1 - shares))[:, None]) + ridge, slope)
    return weights


def auc(scores: Float64Array, y: Float64Array) -> float:
    """How often a token that matters scores above one that does not; ties count half."""
    differences = scores[y == 1][:, None] - scores[y == 0][None]
    return float((differences > 0).mean() + (differences == 0).mean() / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    engine = Engine.load(options.package, EngineConfig(threads=1, is_calibrated=False, is_drafted=False))
    found, num_right = mined(engine, tasks(options.tasks, options.seed))
    y = np.array([float(each.matters) for each in found])
    questions = np.array([float(each.question) for each in found])
    kinds = np.array([each.kind for each in found])
    report: dict[str, object] = {"right": num_right, "mismatches": len(y), "matter": float(y.mean())}
    for kind in sorted(set(kinds)):
        report[f"{kind}: mismatches, matter"] = [int((kinds == kind).sum()), float(y[kinds == kind].mean())]
    for judge in JUDGES:
        for penalty in PENALTIES:
            scores = held_out_scores(inputs(found, judge), y, questions, penalty)
            judged = [kind for kind in sorted(set(kinds)) if 0 < y[kinds == kind].mean() < 1]
            within = {kind: auc(scores[kinds == kind], y[kinds == kind]) for kind in judged}
            report[f"{judge}, penalty {penalty:g}"] = {"all": auc(scores, y)} | within
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

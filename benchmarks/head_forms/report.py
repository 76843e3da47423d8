"""The tables of the comparison of forms, in Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.head_forms.acceptance import FormAcceptance
from benchmarks.head_forms.places import DEPTH
from benchmarks.head_forms.replays import BUDGETS, TASKS
from benchmarks.head_forms.training import Trained
from benchmarks.tables import table


@dataclass(frozen=True, slots=True)
class PassTimes:
    """seconds: of int8 passes of 5 and 9 tokens behind 512 (benchmarks/PASSES.md), by number of drafted nodes."""

    hidden: int
    seconds: Mapping[int, float]


TARGETS = {
    "135M": PassTimes(576, {4: 8.8e-3, 8: 10.4e-3}),
    "0.5B shape": PassTimes(896, {4: 25.1e-3, 8: 26.9e-3}),
    "3B shape": PassTimes(2048, {4: 121.6e-3, 8: 148.8e-3}),
}

Tokens = Mapping[tuple[int, str], float]  # tokens a pass, by nodes and task


@dataclass(frozen=True, slots=True)
class FormResult:
    """What training made of a form."""

    name: str
    num_parameters: int
    trained: Trained
    acceptance: FormAcceptance


@dataclass(frozen=True, slots=True)
class DepthResult:
    """A form that looks so far ahead. step_s: by hidden size. saved: share of passes, as text, by number of nodes."""

    form: FormResult
    depth: int
    step_s: Mapping[int, float]
    tokens: Tokens
    saved: Mapping[int, str]

    def speed(self, without: Tokens, target: PassTimes, num_nodes: int, task: str) -> float:
        """Modelled: with this head asked in every step, over without."""
        pass_s = target.seconds[num_nodes]
        return self.tokens[num_nodes, task] / without[num_nodes, task] * pass_s / (pass_s + self.step_s[target.hidden])


def acceptance_table(forms: Sequence[FormResult]) -> list[str]:
    """Best guess and best four, at each depth."""
    header = ["form", "parameters", "epochs (steps)", *(f"depth {depth}" for depth in range(1, DEPTH + 1))]
    rows = []
    for form in forms:
        hits = [f"{one:.3f}, {four:.3f}" for one, four in zip(form.acceptance.top1, form.acceptance.top4, strict=True)]
        trained = f"{form.trained.epochs:.1f} ({form.trained.steps})"
        rows.append([form.name, f"{form.num_parameters:,}", trained, *hits, *["-"] * (DEPTH - len(hits))])
    return table(header, rows)


def depth_table(results: Sequence[DepthResult], without: Tokens) -> list[str]:
    """What a chain accepts, what a step takes, and what a replay makes of it."""
    header = ["form, tokens ahead", "accepted by product", "counted"]
    header += [f"step, ms, hidden {target.hidden}" for target in TARGETS.values()]
    header += [f"tokens a pass, {task or 'all'}" for task in TASKS] + ["passes saved, %"]
    nothing = ["none", *["-"] * (2 + len(TARGETS)), *(_tokens(without, task) for task in TASKS), "-"]
    rows = [
        [
            _name(result),
            f"{result.form.acceptance.by_product(result.depth):.2f}",
            f"{result.form.acceptance.counted(result.depth):.2f}",
            *(f"{1e3 * result.step_s[target.hidden]:.2f}" for target in TARGETS.values()),
            *(_tokens(result.tokens, task) for task in TASKS),
            " / ".join(result.saved[num_nodes] for num_nodes in BUDGETS),
        ]
        for result in results
    ]
    return table(header, [nothing, *rows])


def clock_table(results: Sequence[DepthResult], without: Tokens) -> list[str]:
    """Modelled speed with the head over without, by target and kind of prompts."""
    header = ["form, tokens ahead", *(f"{name}, {task or 'all'}" for name in TARGETS for task in TASKS)]
    rows = [
        [
            _name(result),
            *(
                " / ".join(f"{result.speed(without, target, num_nodes, task):.2f}" for num_nodes in BUDGETS)
                for target in TARGETS.values()
                for task in TASKS
            ),
        ]
        for result in results
    ]
    return table(header, rows)


def _name(result: DepthResult) -> str:
    return f"{result.form.name}, {result.depth}"


def _tokens(tokens: Tokens, task: str) -> str:
    return " / ".join(f"{tokens[num_nodes, task]:.2f}" for num_nodes in BUDGETS)

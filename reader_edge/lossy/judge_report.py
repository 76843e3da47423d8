"""What `lossy train-judge` tells: how well a judge ranks tokens beside the gap alone."""

import math

from reader_edge.lossy.judge_trial import Areas, JudgeTrial
from reader_edge.terminal.console import figures_table, print_table


def print_trial(trial: JudgeTrial) -> None:
    """Print the figures as tables, on standard error."""
    table = figures_table(
        f"{trial.num_matter} of {trial.num} tokens change the final answer: areas under the curve",
        *("not seen", "tokens", "that matter %", "the gap alone", "the judge"),
    )
    table.add_row("questions", *_row(trial.num, trial.num_matter, trial.questions))
    for name, kind in trial.kinds.items():
        table.add_row(f"kind {name}", *_row(kind.num, kind.num_matter, kind.held_out))
    lets = figures_table(
        "On questions that it has not seen, of what it lets through",
        *("threshold", "let through %", "matters %", "by a gap that lets as many through: matters %"),
    )
    for let in trial.lets:
        lets.add_row(f"{let.threshold:g}", *(f"{100 * share:.1f}" for share in (let.share, let.judge, let.gap)))
    print_table(table)
    print_table(lets)


def verdict(trial: JudgeTrial) -> str:
    """One sentence on questions, and one on whole kinds of tasks."""
    questions, kinds = trial.questions, trial.unseen_kinds
    better = "better" if trial.beats_the_gap else "no better"
    told = (
        f"On questions that it has not seen, the judge ranks tokens {better} than the gap alone "
        f"(area {_area(questions)}, ahead in {100 * trial.lead:.0f} % of resamples)."
    )
    if math.isnan(kinds.judge):
        return f"{told} Of kinds that it has not seen nothing can be told."
    is_better = kinds.judge > max(kinds.gap, 0.5)
    elsewhere = "it is better, too" if is_better else "it is no better than the gap, or than chance"
    return f"{told} On kinds of tasks that it has not seen, {elsewhere}: {_area(kinds)}."


def _area(areas: Areas) -> str:
    return f"{areas.judge:.2f} beside {areas.gap:.2f}"


def _row(num: int, num_matter: int, areas: Areas) -> list[str]:
    told = ["-" if math.isnan(each) else f"{each:.2f}" for each in (areas.gap, areas.judge)]
    return [str(num), f"{100 * num_matter / num:.0f}", *told]

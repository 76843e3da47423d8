"""The section of RESULTS.md on a real model: speed of each runtime, and what its drafting gains by kind of prompt."""

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.peers.tables import gigabytes, table

Figures = Mapping[str, Any]


def real_section(result: Mapping[str, Any]) -> str:
    """Speeds of whole answers, and what drafting gains by category."""
    figures = {name: r for name, r in result["figures"].items() if r["num_tokens"] and r["drafted"]["num_tokens"]}
    if not figures:
        return ""
    categories = list(dict.fromkeys(next(iter(figures.values()))["categories"]))
    rows, gains = [], []
    for name, record in figures.items():
        drafted = record["drafted"]
        plain_rate, drafted_rate = _rate(record), _rate(drafted)
        num_equal = f"{sum(record['is_equal'])} of {len(record['is_equal'])}"
        peaks = gigabytes(record), gigabytes(drafted)
        ratio = f"{drafted_rate / plain_rate:.2f}"
        rows.append([name, f"{plain_rate:.1f}", f"{drafted_rate:.1f}", ratio, num_equal, *peaks])
        gains.append([name, *(_gain(record, category) for category in categories)])
    header = ["", "plain tokens/s", "drafted tokens/s", "drafted / plain", "drafted answers equal to plain ones"]
    return "\n".join(
        [
            f"## A real model: {result['model']}, whole answers",
            "",
            f"Chat prompts of {len(categories)} categories, greedy, to the end token; a prompt's time is its answer's.",
            "",
            *table([*header, "peak GB plain", "peak GB drafted"], rows),
            "",
            "Drafted over plain tokens/s of an answer, median by category; behind it the equal answers:",
            "",
            *table(["", *categories], gains),
        ]
    )


def _gain(record: Figures, category: str) -> str:
    """The median answer's gain, and how many of the category's answers were equal."""
    speeds = [_speeds(each) for each in (record, record["drafted"])]
    answers = zip(record["categories"], *speeds, record["is_equal"], strict=False)  # who failed answered fewer
    of_category = [(drafted / plain, is_equal) for name, plain, drafted, is_equal in answers if name == category]
    if not of_category:
        return "-"
    gains, are_equal = zip(*of_category, strict=True)
    return f"{statistics.median(gains):.2f} ({sum(are_equal)} of {len(are_equal)})"


def _speeds(record: Figures) -> list[float]:
    """Tokens a second of each answer, its prompt included."""
    return [num / seconds for num, seconds in zip(record["num_tokens"], _seconds(record), strict=True)]


def _seconds(record: Figures) -> list[float]:
    return [first + rest for first, rest in zip(record["first_s"], record["rest_s"], strict=True)]


def _rate(record: Figures) -> float:
    """Tokens a second of all answers."""
    return float(sum(record["num_tokens"]) / sum(_seconds(record)))

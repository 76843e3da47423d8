"""Draws what speculators reach, and what they would have to reach to pay, from what the frontier tells.

reader-edge bench frontier RECORDING PACKAGE --speculator --json > FILE
python -m benchmarks.fusion.draw_needed TITLE=FILE [TITLE=FILE ...] -o OUT.svg
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.peers.tables import table
from reader_edge.bench.plot import new_figure, save_plot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("told", nargs="+", help="TITLE=FILE")
    parser.add_argument("-o", "--out", type=Path, required=True)
    arguments = parser.parse_args()
    told = dict(each.split("=", 1) for each in arguments.told)
    figure = new_figure(4 * len(told), 3)
    for axes, (title, file) in zip(figure.subplots(1, len(told), squeeze=False)[0], told.items(), strict=True):
        points = json.loads(Path(file).read_text(encoding="utf-8"))["points"]
        for (label, lengths), style in zip(_lines(points).items(), ("o-", "s-", "k--"), strict=True):
            axes.plot([point["nodes"] for point in points], lengths, style, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("drafted nodes a step")
        axes.set_ylabel("tokens a pass")
        axes.set_title(title)
        axes.legend(fontsize="small")
        print("\n".join(["", title, "", *rows(points)]))
    save_plot(figure, arguments.out)


def _lines(points: list[dict[str, Any]]) -> dict[str, list[float]]:
    both = [point["speculated"] for point in points]
    return {
        "retrieval": [each["without"]["acceptance_length"] for each in both],
        "with the speculator": [each["asked"]["acceptance_length"] for each in both],
        "needed to be as fast": [each["needed_acceptance_length"] for each in both],
    }


def rows(points: list[dict[str, Any]]) -> list[str]:
    """A table of one recording."""
    head = ["nodes", "pass, ms", "beside it, ms", "with it asked, ms", *_lines(points), "modelled tokens/s", "with it"]
    lengths = zip(*_lines(points).values(), strict=True)
    return table(
        head,
        [
            [
                str(point["nodes"]),
                f"{1e3 * point['pass_s']:.2f}",
                *(f"{1e3 * point['speculated'][way]['beside_s']:.2f}" for way in ("without", "asked")),
                *(f"{length:.2f}" for length in each),
                *(f"{point['speculated'][way]['tokens_per_s']:.0f}" for way in ("without", "asked")),
            ]
            for point, each in zip(points, lengths, strict=True)
        ],
    )


if __name__ == "__main__":
    main()

"""The line of quality against rejections, and where the ways of a lossy bench lie.

What a rule saves in rejections it pays in total variation, at best one for one ("A Theoretical Perspective for
Speculative Decoding Algorithm", NeurIPS 2024, arXiv 2411.00841). A greedy target is certain of its choice, so that each
token that is not its choice costs one. The line holds for a text as it is: a way below it says what is easier to draft.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from reader_edge.terminal.console import figures_table
from reader_edge_runtime.errors import UserFileError
from reader_edge_runtime.outside.user_input import as_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_BYTES = 1 << 22
_MARKERS = "os^v"
_TICKS = (-20, -10, -5, -2, -1, -0.5, 0, 0.5, 1, 2, 5, 10, 20, 50)
_COUNTS = ("tasks", "right", "tokens", "decoded_tokens", "steps", "changed")


@dataclass(frozen=True, slots=True)
class LossyPoint:
    """A way to answer.

    rejected: passes a token, each of which ends with one that was not drafted. changed: share of tokens that are not
    the target's choice. right: share of answers that are.
    """

    way: str
    rejected: float
    changed: float
    right: float


@dataclass(frozen=True, slots=True)
class LossyLine:
    """points: the exact way first, where the line begins."""

    points: tuple[LossyPoint, ...]

    @classmethod
    def read(cls, path: Path) -> "LossyLine":
        """What `lossy bench --json` printed. Raises UserFileError for anything else."""
        try:
            text = as_text(path.read_bytes()[: _MOST_BYTES + 1])
            if len(text) > _MOST_BYTES:
                raise ValueError("too long")
            points = tuple(map(_point, json.loads(text)["ways"]))
            if not points or points[0].changed:
                raise ValueError("its first way is not exact")
        except OSError as error:
            raise UserFileError(f"'{path}' cannot be read: {error.strerror or error}.") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserFileError(f"'{path}' is not what `lossy bench --json` prints: make it again.") from error
        return cls(points)

    def allowed(self, point: LossyPoint) -> float:
        """What a way that rejects so little changes at least, were its text the exact one."""
        return max(0.0, self.points[0].rejected - point.rejected)

    def fields(self) -> list[dict[str, object]]:
        """Ready for JSON."""
        return [
            {
                "way": each.way,
                "rejected": each.rejected,
                "changed": each.changed,
                "line": self.allowed(each),
                "right": each.right,
            }
            for each in self.points
        ]

    def table(self) -> Table:
        """The ways beside the line."""
        title = "Lossy ways beside the line of quality against rejections (below it: texts that are easier to draft)"
        table = figures_table(title, "way", "rejected %", "changed %", "on the line %", "right %")
        for each in self.points:
            figures = (each.rejected, each.changed, self.allowed(each), each.right)
            table.add_row(each.way, *(f"{100 * figure:.2f}" for figure in figures))
        return table

    def draw(self, axes: "Axes") -> None:
        """The line, and each way with its share of right answers: linear up to one of a hundred, logarithmic beyond."""
        from matplotlib.ticker import FixedLocator

        saved = [100 * (self.points[0].rejected - each.rejected) for each in self.points]
        axes.plot([0, max(saved)], [0, max(saved)], "--", color="gray", label="line")
        rules = [each.way.rpartition(":")[0] for each in self.points]
        colours = {rule: f"C{number}" for number, rule in enumerate(dict.fromkeys(rules))}
        for number, (each, x, rule) in enumerate(zip(self.points, saved, rules, strict=True)):
            marker = _MARKERS[rules[:number].count(rule) % len(_MARKERS)]
            label = f"{each.way}: {each.right:.0%} right"
            axes.plot(x, 100 * each.changed, marker, color=colours[rule], label=label)
        axes.set_xscale("symlog", linthresh=1)
        axes.set_yscale("symlog", linthresh=1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(FixedLocator(_TICKS))
            axis.set_major_formatter("{x:g}")
        axes.set_xlabel("rejections saved of a hundred tokens")
        axes.set_ylabel("tokens of a hundred that are not the model's choice")
        axes.set_title("quality against rejections")
        legend = axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
        for text in legend.get_texts():
            text.set_parse_math(False)  # a judge's path may hold dollars


def _point(way: dict[str, Any]) -> LossyPoint:
    """Raises ValueError, KeyError or TypeError for what no bench could have counted."""
    name, counts = way["way"], {each: way[each] for each in _COUNTS}
    if not isinstance(name, str) or not all(type(count) is int and 0 <= count < 1 << 53 for count in counts.values()):
        raise ValueError("counts that are none")
    if not counts["tasks"] or not counts["tokens"] or not counts["decoded_tokens"]:
        raise ValueError("nothing was counted")
    rejected, changed = counts["steps"] / counts["decoded_tokens"], counts["changed"] / counts["tokens"]
    return LossyPoint(name, rejected, changed, counts["right"] / counts["tasks"])

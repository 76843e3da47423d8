"""What packages beside this one add by entry points: commands, and rules by which answers may differ."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from reader_edge_runtime.plug_ins import COMMANDS_GROUP, RULES_GROUP, plug_ins

if TYPE_CHECKING:
    from reader_edge_runtime.decoding.rule_config import RuleConfig


def added_commands() -> list[click.Command]:
    """Those of packages that are here."""
    return [each.load() for each in plug_ins(COMMANDS_GROUP)]


def _rule(ctx: click.Context, parameter: click.Parameter, value: str | None) -> "RuleConfig | None":
    """NAME:FIGURE:..., as the class of that name made of figures in the order of its fields."""
    if value is None:
        return None
    name, *figures = value.split(":")
    points = {each.name: each for each in plug_ins(RULES_GROUP)}
    if name not in points:
        raise click.BadParameter(f"{name!r} is no rule that is installed: take {' or '.join(points) or 'none'}.")
    kind: Any = points[name].load()
    form = ":".join([name, *(each.name.upper() for each in fields(kind))])
    if len(figures) > len(fields(kind)):
        raise click.BadParameter(f"{value!r} has too many figures: give {form}.")
    try:
        rule: RuleConfig = kind(*(int(each) if each.isdecimal() else float(each) for each in figures))
    except ValueError:
        raise click.BadParameter(f"{value!r} has what is no number: give {form}.") from None
    return rule


rule = click.option(
    "--rule",
    metavar="NAME[:FIGURE...]",
    callback=_rule,
    help="Let answers differ from the model's own by a rule, and say by how much. relaxed:GAP:BUDGET and "
    "big-little:DISTANCE take drafted tokens that are likely enough; views:CONTEXT:WEIGHT mixes a long prompt with "
    "what is retrieved of it. Figures have defaults.",
)

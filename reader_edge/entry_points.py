"""What packages beside this one add by entry points: commands, and rules by which answers may differ."""

import re
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import click

from reader_edge_runtime.plug_ins import COMMANDS_GROUP, RULES_GROUP, all_loaded, loaded, plug_ins

if TYPE_CHECKING:
    from reader_edge_runtime.decoding.rule_config import RuleConfig


_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,99})(\.[0-9]+)?([eE][+-]?[0-9]+)?")  # JSON's form


def added_commands(built_in: Collection[str]) -> dict[str, click.Command]:
    """By name, those of packages that are here and can be loaded."""
    return all_loaded(COMMANDS_GROUP, built_in, lambda value: isinstance(value, click.Command))


def _rule(ctx: click.Context, parameter: click.Parameter, value: str | None) -> "RuleConfig | None":
    """NAME:FIGURE:..., as the class of that name made of figures in the order of its fields."""
    if value is None:
        return None
    name, *figures = value.split(":")
    points = plug_ins(RULES_GROUP)
    if name not in points:
        raise click.BadParameter(f"{name!r} is no rule that is installed: take {' or '.join(points) or 'none'}.")
    kind: Any = loaded(points[name], lambda value: isinstance(value, type) and is_dataclass(value))
    usage = ":".join([name, *(each.name.upper() for each in fields(kind))])
    if len(figures) > len(fields(kind)):
        raise click.BadParameter(f"{value!r} has too many figures: give {usage}.")
    if not all(map(_NUMBER.fullmatch, figures)):
        raise click.BadParameter(f"{value!r} has what is no number: give {usage}.")
    rule: RuleConfig = kind(*(int(each) if each.isdecimal() else float(each) for each in figures))
    return rule


rule = click.option(
    "--rule",
    metavar="NAME[:FIGURE...]",
    callback=_rule,
    help="Let answers differ from the model's own by a rule, and say by how much. relaxed:GAP:BUDGET and "
    "big-little:DISTANCE take drafted tokens that are likely enough; views:CONTEXT:WEIGHT mixes a long prompt with "
    "what is retrieved of it. Figures have defaults.",
)

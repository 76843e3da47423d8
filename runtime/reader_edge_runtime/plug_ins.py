"""Entry points by which packages beside this one add commands, rules and providers."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

COMMANDS_GROUP, RULES_GROUP, PROVIDERS_GROUP = (f"reader_edge.{each}" for each in ("commands", "rules", "providers"))


_every_entry_point = cache(entry_points)  # which reads a file of each installed distribution


def plug_ins(group: str) -> list[EntryPoint]:
    """Those of a group whose package is here: the folder of a wing may be deleted."""
    found = _every_entry_point().select(group=group)
    return [each for each in found if find_spec(each.module.partition(".")[0]) is not None]


def provider_names() -> tuple[str, ...]:
    """Of `PROVIDERS` in execution/providers.py, which loads engines of execution."""
    return ("cpu", "cuda", "iree", *(each.name for each in plug_ins(PROVIDERS_GROUP)))

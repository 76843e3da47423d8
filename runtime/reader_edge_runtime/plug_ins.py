"""Entry points by which packages beside this one add commands, rules and providers."""

import warnings
from collections.abc import Callable, Collection
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from reader_edge_runtime.errors import InstallationError
from reader_edge_runtime.untrusted.user_input import short_repr

COMMANDS_GROUP, RULES_GROUP, PROVIDERS_GROUP = (f"reader_edge.{each}" for each in ("commands", "rules", "providers"))
_BUILT_IN_PROVIDERS = ("cpu", "cuda", "iree")
_OWN = "reader-edge"  # the distribution


_every_entry_point = cache(entry_points)  # which reads a file of each installed distribution


@cache
def _warn_once(sentence: str) -> None:
    """Warn, however often the same is found."""
    warnings.warn(sentence, RuntimeWarning, stacklevel=2)


def plug_ins(group: str, built_in: Collection[str] = ()) -> dict[str, EntryPoint]:
    """By name, those of a group whose package is here: the folder of a wing may be deleted.

    None is loaded. Warns of one that is left out, as its name is taken or cannot be shown.
    """
    found: dict[str, EntryPoint] = {}
    here = filter(_is_here, _every_entry_point().select(group=group))
    for each in sorted(here, key=lambda each: _distribution(each) != _OWN):
        is_shown = bool(each.name) and each.name.isprintable()
        if is_shown and each.name not in (*built_in, *found):
            found[each.name] = each
        else:
            reason = "its name is taken" if is_shown else "it has no name that can be shown"
            _warn_once(f"{_title(each)} is left out, as {reason}: rename or uninstall it.")
    return found


def loaded(plug_in: EntryPoint, fits: Callable[[Any], bool]) -> Any:
    """What a plug-in names. Raises InstallationError where it cannot be loaded or does not fit."""
    try:
        value = plug_in.load()
        if not fits(value):
            raise TypeError(f"{short_repr(value)} is of the wrong kind")
    except (Exception, SystemExit) as error:  # of a module that is not ours
        sentence = f"{_title(plug_in)} cannot be loaded ({short_repr(error)}): repair or uninstall it."
        raise InstallationError(sentence) from error
    return value


def all_loaded(group: str, built_in: Collection[str], fits: Callable[[Any], bool]) -> dict[str, Any]:
    """By name, what the plug-ins of a group name. Warns of one that cannot be loaded or does not fit."""
    found = {}
    for name, each in plug_ins(group, built_in).items():
        try:
            found[name] = loaded(each, fits)
        except InstallationError as error:
            _warn_once(str(error))
    return found


def provider_plug_ins() -> dict[str, EntryPoint]:
    """By name, none of them a built-in provider's."""
    return plug_ins(PROVIDERS_GROUP, _BUILT_IN_PROVIDERS)


def provider_names() -> tuple[str, ...]:
    """Of `PROVIDERS` in execution/providers.py, which loads engines of execution, and of plug-ins."""
    return (*_BUILT_IN_PROVIDERS, *provider_plug_ins())


def _is_here(plug_in: EntryPoint) -> bool:
    try:
        package = plug_in.module.partition(".")[0]
        return not package or find_spec(package) is not None
    except (AttributeError, ValueError):
        return True  # it names no module, which is found out when it is loaded


def _distribution(plug_in: EntryPoint) -> str | None:
    return None if plug_in.dist is None else plug_in.dist.name


def _title(plug_in: EntryPoint) -> str:
    return f"The plug-in {short_repr(plug_in.name)} ({plug_in.group}) of {short_repr(_distribution(plug_in))}"

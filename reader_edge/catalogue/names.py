"""The names of models: those of the catalogue, of repositories of the hub, and of single files there."""

import re

from reader_edge.catalogue.entries import CATALOGUE, Origin
from reader_edge_runtime.errors import CatalogueError

# With the C of "C:file" a Windows path, a name before the colon has two letters or more.
_TAGGED = re.compile(r"[A-Za-z0-9][\w.-]+:[\w.-]+")
_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/\w[\w.-]*)(?:/(\w[\w.-]*\.gguf))?")


def is_model_name(text: str) -> bool:
    """Whether a text that names no path here has the form of a model's name."""
    return text.lower() in _families() or any(form.fullmatch(text) for form in (_TAGGED, _HUB_ID))


def canonical(name: str) -> str:
    """A name as the catalogue spells it; any other as it is."""
    return name.lower() if name.lower() in CATALOGUE else name


def find_origin(name: str) -> Origin:
    """Where a model comes from. Raises CatalogueError for a name that is none."""
    known = CATALOGUE.get(canonical(name))
    if known:
        return known
    if found := _HUB_ID.fullmatch(name):
        return Origin(found[1], found[2])
    family = name.lower().partition(":")[0]
    sizes = [each for each in CATALOGUE if each.startswith(f"{family}:")]
    remedy = f"there is {', '.join(sizes)}" if sizes else "`reader-edge pull --help` names them"
    raise CatalogueError(f"The catalogue has no model '{name}': {remedy}; any of the hub's is OWNER/NAME.")


def _families() -> set[str]:
    return {name.partition(":")[0] for name in CATALOGUE}

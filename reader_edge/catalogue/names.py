"""The names of models: those of the catalogue, of repositories of the hub, and of single files there."""

import re
from difflib import get_close_matches

from reader_edge.catalogue.entries import CATALOGUE, Origin
from reader_edge_runtime.errors import UnknownModelError

# With the C of "C:file" a Windows path, a name before the colon has two letters or more.
_TAGGED = re.compile(r"[A-Za-z0-9][\w.-]+:[\w.-]+")
_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/\w[\w.-]*)(?:/(\w[\w.-]*\.gguf))?")
# As Ollama and browsers have them.
_PLACES = re.compile(
    r"(?:https?://)?(?:hf\.co|huggingface\.co|(?:(?:ollama\.com|registry\.ollama\.ai)/)?library)/", re.I
)


def is_model_name(text: str) -> bool:
    """Whether a text that names no path here has the form of a model's name."""
    return text.lower() in _families() or any(form.fullmatch(text) for form in (_TAGGED, _HUB_ID))


def canonical(name: str) -> str:
    """A name as the catalogue spells it; any other as it is."""
    return name.lower() if name.lower() in CATALOGUE else name


def find_origin(name: str) -> Origin:
    """Where a model comes from. Raises UnknownModelError for a name that is none."""
    known = CATALOGUE.get(canonical(name))
    if known:
        return known
    if found := _HUB_ID.fullmatch(name):
        return Origin(found[1], found[2])
    family = name.lower().partition(":")[0]
    sizes = [each for each in CATALOGUE if each.startswith(f"{family}:")]
    similar = similar_name(name)
    if sizes:
        remedy = f"there is {', '.join(sizes)};"
    elif similar:
        remedy = f"did you mean {similar}? If not,"
    else:
        remedy = "`reader-edge pull --help` names them;"
    raise UnknownModelError(f"The catalogue has no model '{name}': {remedy} any of the hub's is OWNER/NAME.")


def similar_name(name: str) -> str | None:
    """The name that a misspelt one may mean, of the catalogue or, where another program names it so, of the hub."""
    bare = _PLACES.sub("", name.strip(), count=1).rstrip("/")
    hub_id = bare.partition(":")[0]
    if _HUB_ID.fullmatch(hub_id):
        return hub_id if hub_id != name else None
    known = [*CATALOGUE, *sorted(_families())]
    return next(iter(get_close_matches(bare.lower(), known, n=1, cutoff=0.75)), None)


def _families() -> set[str]:
    return {name.partition(":")[0] for name in CATALOGUE}

"""Which speculators are published for which models, and where they lie on this machine."""

import re
from pathlib import Path

import click

from reader_edge.models.catalogue import Origin, find_origin
from reader_edge.models.exported import ModelSource
from reader_edge.models.hub_cache import find_cached
from reader_edge.terminal.formatting import visible
from reader_edge_export.speculators.formats.find import AUTO
from reader_edge_runtime.errors import CatalogueError
from reader_edge_runtime.untrusted.gguf_header import is_gguf

PUBLISHED: dict[str, tuple[str, ...]] = {  # the hub's ids: of a model, of drafts of a block and assistants for it
    "Qwen/Qwen3-4B": ("z-lab/Qwen3-4B-DFlash-b16", "deepseek-ai/dspark_qwen3_4b_block7"),
    "Qwen/Qwen3-8B": ("z-lab/Qwen3-8B-DFlash-b16", "deepseek-ai/dspark_qwen3_8b_block7"),
    "Qwen/Qwen3-14B": ("deepseek-ai/dspark_qwen3_14b_block7",),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": ("z-lab/Qwen3-Coder-30B-A3B-DFlash",),
    "Qwen/Qwen3.5-4B": ("z-lab/Qwen3.5-4B-DFlash",),
    "Qwen/Qwen3.5-9B": ("z-lab/Qwen3.5-9B-DFlash",),
    "Qwen/Qwen3.5-27B": ("z-lab/Qwen3.5-27B-DFlash",),
    "Qwen/Qwen3.5-35B-A3B": ("z-lab/Qwen3.5-35B-A3B-DFlash",),
    "Qwen/Qwen3.6-27B": ("z-lab/Qwen3.6-27B-DFlash",),
    "Qwen/Qwen3.6-35B-A3B": ("z-lab/Qwen3.6-35B-A3B-DFlash",),
    "meta-llama/Llama-3.1-8B-Instruct": ("z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",),
    "openai/gpt-oss-20b": ("z-lab/gpt-oss-20b-DFlash",),
    "openai/gpt-oss-120b": ("z-lab/gpt-oss-120b-DFlash",),
    "google/gemma-4-E2B-it": ("google/gemma-4-E2B-it-assistant",),
    "google/gemma-4-E4B-it": ("google/gemma-4-E4B-it-assistant",),
    "google/gemma-4-26B-A4B-it": ("google/gemma-4-26B-A4B-it-assistant",),
}
_STORED_AS = re.compile(r"-(GGUF|(UD-)?(I?Q\d\w*|MXFP4\w*|BF16|F16|F32))", re.I)  # how a file's name ends
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/\w[\w.-]*")
_NOT_NEEDED = "tokenizer.json"  # of a speculator's folder


def published_speculators(source: ModelSource) -> tuple[str, ...]:
    """The hub's ids of those for a model, by its name, or by the name of its folder or file; () for none."""
    if source.name is not None:
        name = find_origin(source.name).hub_id.rpartition("/")[2]
    else:
        name = source.path.stem if is_gguf(source.path) else source.path.name
    while cut := _STORED_AS.search(name):
        name = name[: cut.start()]
    by_name = {hub_id.rpartition("/")[2].lower(): drafts for hub_id, drafts in PUBLISHED.items()}
    return by_name.get(name.lower(), ())


def found_speculator(given: str | Path, source: ModelSource) -> str | Path:
    """The folder that is meant: one that is given, that of an id on the hub in the Hugging Face cache, or for AUTO that
    of a speculator published for the model, beside it or in that cache. Tells which it is.

    AUTO itself, the model's own layers, where none lies here. Raises CatalogueError for an id that is not here.
    """
    if given != AUTO:
        if Path(given).exists() or not _HUB_ID.fullmatch(str(given)):
            return given
        if folder := _cached(str(given)):
            return folder
        raise CatalogueError(
            f"No folder at '{given}', and the Hugging Face cache holds no speculator of this name: give its folder, or "
            f"fetch it with `hf download {given}`."
        )
    for draft in published_speculators(source):
        beside = source.path.parent / draft.rpartition("/")[2]
        if folder := beside if beside.is_dir() else _cached(draft):
            click.echo(visible(f"The speculator is {draft}, read from '{folder}'."), err=True)
            return folder
    return AUTO


def to_fetch(source: ModelSource) -> str:
    """The commands that bring the speculators published for a model; "" where there are none."""
    return " or ".join(f"`hf download {draft}`" for draft in published_speculators(source))


def nothing_to_take(source: ModelSource) -> str:
    """The sentence about AUTO where no speculator is here and the model has no layers of its own."""
    begin = f"'{source.name or source.path.name}' has no layers for later tokens that could be read"
    if commands := to_fetch(source):
        return f"{begin}, and the speculators published for it are not here: {commands} fetches one for this command."
    return (
        f"{begin}, and by its name none of the published speculators is for it: train one with `reader-edge "
        "train-drafter`, give the folder of one, or leave --speculator out."
    )


def _cached(hub_id: str) -> Path | None:
    cached = find_cached(Origin(hub_id))
    return cached.path if cached is not None and cached.lacking in (None, _NOT_NEEDED) else None

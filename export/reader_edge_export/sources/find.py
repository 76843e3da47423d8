"""Finds out what kind a source is, a Hugging Face folder or a GGUF file, without importing any library."""

import re
from pathlib import Path

from reader_edge_export.sources.folder.hugging_face import check_folder, find_folder
from reader_edge_export.sources.source import Source
from reader_edge_runtime.untrusted.gguf_header import is_gguf, refuse_as_no_gguf

_PART = re.compile(r"(.*)-[0-9]{5}-of-([0-9]{5})\.gguf", re.DOTALL)


def part_names(name: str) -> list[str]:
    """The files of a GGUF model in several parts, by the name of any of them; any other file is alone."""
    found = _PART.fullmatch(name)
    count = int(found[2]) if found else 0
    return [f"{found[1]}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)] if found else [name]


def gguf_files(path: Path) -> list[Path]:
    """What is there of a model's GGUF file, which may be the first of several parts."""
    return [part for name in part_names(path.name) if (part := path.with_name(name)).is_file()]


def mmproj_files(path: Path) -> list[Path]:
    """What lies beside a GGUF file and, by its name, sees images for a model."""
    return sorted(each for each in path.parent.glob("mmproj*.gguf") if each.is_file() and each.name != path.name)


def check_kind(name: str | Path) -> None:
    """Refuse what is no model of a kind that can be exported. Needs nothing of the extra "export".

    Raises ExportError or UnsupportedArchitectureError, as `find_source` does.
    """
    path = Path(name)
    if not path.is_file():
        check_folder(path)
    elif not is_gguf(path):
        refuse_as_no_gguf(path)


def find_source(name: str | Path, max_context: int | None) -> Source:
    """Find and check a model: a GGUF file, a local folder, or the id of a model on the hub ("owner/name").

    Raises ExportError, UnsupportedArchitectureError or TokenizerError, with the remedy in one sentence.
    """
    if Path(name).is_file():
        from reader_edge_export.sources.gguf.gguf_file import GgufFile
        from reader_edge_export.sources.gguf.gguf_source import GgufSource

        found: Source = GgufSource.of(GgufFile.open(Path(name)), max_context)
    else:
        found = find_folder(name, max_context)
    found.sampling()  # whose errors come before anything heavy is imported
    return found

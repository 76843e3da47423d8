"""Which kind of source a name means."""

from pathlib import Path

from reader_edge_export.sources.folder.hugging_face import check_folder, find_folder
from reader_edge_export.sources.gguf.magic import is_gguf, refuse_as_no_gguf
from reader_edge_export.sources.source import Source


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

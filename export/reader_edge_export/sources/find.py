"""Which kind of source a name means."""

from pathlib import Path

from reader_edge_export.sources.hugging_face import find_folder
from reader_edge_export.sources.source import Source


def find_source(name: str | Path, max_context: int | None) -> Source:
    """Find and check a model: a GGUF file, a local folder, or the id of a model on the hub ("owner/name").

    Raises ExportError, UnsupportedArchitectureError or TokenizerError, with the remedy in one sentence.
    """
    if Path(name).is_file():
        from reader_edge_export.sources.gguf.gguf_file import GgufFile
        from reader_edge_export.sources.gguf.gguf_source import GgufSource

        return GgufSource.of(GgufFile.open(Path(name)), max_context)
    return find_folder(name, max_context)

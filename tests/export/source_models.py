"""Source models of folders, as an export opens them."""

from pathlib import Path

from transformers import PreTrainedModel

from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.folder.folder_files import read_json
from reader_edge_export.sources.folder.folder_weights import open_folder
from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_export.sources.source_model import SourceModel
from tests.export.whole_models import whole


def open_source(path: Path) -> SourceModel:
    """Of a folder or file that can be exported."""
    return find_source(path, None).open_model()


def layered(path: Path) -> LayeredModel:
    """The same, to be run a layer at a time."""
    return LayeredModel(open_source(path))


def load_folder(folder: Path) -> PreTrainedModel:
    """The model in a folder, which needs no tokenizer, with all of its weights."""
    return whole(open_folder(folder, read_json(folder / "config.json")))

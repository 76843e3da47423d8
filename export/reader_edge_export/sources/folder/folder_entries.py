"""What lies in a folder that should hold a model in Hugging Face format: files that can be read, of a whole model."""

from pathlib import Path

from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from reader_edge_runtime.untrusted.plain_file import check_plain_file

_READ = ("*.json", "*.jinja", "*.model", "*.txt")  # what transformers and tokenizers may open beside the weights
_MAX_NAMED = 5


def check_entries(folder: Path) -> None:
    """Raise ExportError where a file that a library would open is no plain file, or the folder holds something else.

    Links to plain files are followed: a folder of the hub's cache consists of them.
    """
    for pattern in _READ:
        for path in sorted(folder.glob(pattern)):
            check_plain_file(path, ExportError, "fetch the model again")
    has_adapter = (folder / "adapter_config.json").exists()
    if (folder / "config.json").exists():
        if has_adapter:  # transformers would load it, and the model that it names instead of this one
            raise UnsupportedArchitectureError(
                f"'{folder}' holds a model and an adapter (adapter_config.json) that changes its answers: give a "
                "model that it is merged into (peft's merge_and_unload), or remove adapter_config.json to export the "
                "model without it."
            )
        return
    if has_adapter:
        raise UnsupportedArchitectureError(
            f"'{folder}' holds an adapter (adapter_config.json) for another model: merge it into that model "
            "(peft's merge_and_unload), and give the merged one."
        )
    names = ("config.json", "adapter_config.json")
    if snapshots := sorted(path for name in names for path in folder.glob(f"snapshots/*/{name}")):
        raise ExportError(f"'{folder}' is the hub cache's folder of a model: give '{snapshots[-1].parent}' instead.")
    if files := sorted(path.name for path in folder.glob("*.gguf")):
        more = f" and {len(files) - _MAX_NAMED} more" if len(files) > _MAX_NAMED else ""
        raise ExportError(
            f"'{folder}' holds GGUF files ({', '.join(files[:_MAX_NAMED])}{more}) and no folder's model: "
            f"give one of them, such as '{folder / files[0]}'."
        )

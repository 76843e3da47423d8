"""Which kind of speculator a name means, and which formats are refused."""

import os
from pathlib import Path

from reader_edge_export.sources.folder.folder_files import check_entries, read_json
from reader_edge_export.sources.folder.hugging_face import HuggingFaceSource
from reader_edge_export.sources.folder.stored_tensors import StoredTensor, stored_tensors
from reader_edge_export.sources.source import Source
from reader_edge_export.speculators.formats.block_folders import (
    PACKAGED,
    block_source,
    is_block_folder,
    refuse_by_name,
)
from reader_edge_export.speculators.formats.folders import (
    SpeculatorFiles,
    eagle3_source,
    mlp_source,
    mtp_source,
    own_mtp_source,
    plain_eagle3_source,
)
from reader_edge_runtime.errors import ExportError, NoLaterLayersError, UnsupportedArchitectureError
from reader_edge_runtime.package.package_parts import MLP

AUTO = "auto"  # in the place of a folder: the layers for later tokens that the target's own checkpoint has

_READERS = dict.fromkeys(PACKAGED, block_source) | {"eagle3": eagle3_source, MLP: mlp_source, "mtp": mtp_source}
_OTHERS = {  # further values of speculators_model_type, and what they are called
    "eagle": "EAGLE-1 or EAGLE-2",
    "peagle": "P-EAGLE",
    "mlp_speculator": "MLP of IBM's",
    "independent": "model of its own",
}
_READ = "of EAGLE-3, DFlash, DFlash2, DSpark, MTP, Gemma 4's assistants and train-drafter's MLP"
_ASSISTANT = "gemma4_assistant"  # a value of model_type
_PICKLE = "pytorch_model.bin"
_WANTED = (
    "give a speculator's folder, which has *.safetensors and a config.json with speculators_model_type, "
    f"dflash_config, block_size, draft_vocab_size or the model_type {_ASSISTANT!r}"
)


def find_speculator(name: str | Path, target: Source) -> SpeculatorFiles:
    """The speculator that a name means: a folder, or AUTO.

    Raises ExportError, or UnsupportedArchitectureError for a format that is not read, each with one sentence.
    """
    if str(name) == AUTO:
        return _own(target)
    folder = Path(name)
    if not folder.is_dir():
        raise ExportError(f"No speculator at '{folder}': {_WANTED}.")
    check_entries(folder)
    if (folder / _PICKLE).exists() and not any(folder.glob("*.safetensors")):
        raise ExportError(
            f"'{folder}' holds its weights as {_PICKLE}, a pickle that may run code: convert it with torch.load(..., "
            "weights_only=True) and safetensors.torch.save_file."
        )
    config = read_json(folder / "config.json") if os.path.lexists(folder / "config.json") else {}
    if not _is_named(config) and not any(folder.glob("*.safetensors")):
        raise _is_none(folder)
    kind, tensors = config.get("speculators_model_type"), stored_tensors(folder)
    refuse_by_name(folder, config, tensors)
    if kind is None:
        return _plain(folder, config, tensors)
    if isinstance(kind, str) and kind in _READERS:
        return _READERS[kind](folder, config, tensors)
    raise _refused(folder, _OTHERS.get(str(kind), f"{kind!r:.40}"))


def _is_named(config: dict[str, object]) -> bool:
    keys = {"speculators_model_type", "draft_vocab_size"}
    return bool(keys & config.keys()) or is_block_folder(config) or config.get("model_type") == _ASSISTANT


def _own(target: Source) -> SpeculatorFiles:
    if isinstance(target, HuggingFaceSource):
        own = own_mtp_source(target, stored_tensors(target.folder))
    else:  # imported here: what is checked before an export needs no package that reads GGUF files
        from reader_edge_export.sources.gguf.gguf_source import GgufSource
        from reader_edge_export.speculators.formats.gguf_mtp import gguf_mtp_source

        own = gguf_mtp_source(target) if isinstance(target, GgufSource) else None
    if own is None:
        raise NoLaterLayersError(
            f"'{target.short_name}' has no layers for later tokens that could be read (mtp.* of Qwen 3.5, nextn.* in "
            "its GGUF files): give the folder of a trained speculator, or leave --speculator out."
        )
    return own


def _plain(folder: Path, config: dict[str, object], tensors: dict[str, StoredTensor]) -> SpeculatorFiles:
    """Of a folder without the keys of the `speculators` package."""
    if config.get("model_type") == _ASSISTANT:  # imported here: a model that is refused needs no torch
        from reader_edge_export.speculators.formats.assistants import assistant_source

        return assistant_source(folder, config, tensors)
    if config.get("model_type") == "gemma4_unified_assistant":
        raise _refused(folder, "Gemma 4 Unified's assistant")
    if is_block_folder(config):
        return block_source(folder, config, tensors)
    if "draft_vocab_size" in config or any(name.startswith("midlayer.") for name in tensors):
        return plain_eagle3_source(folder, config, tensors)
    if "fc.weight" in tensors:
        raise _refused(folder, "EAGLE-1 or EAGLE-2")
    raise _is_none(folder)


def _is_none(folder: Path) -> ExportError:
    return ExportError(f"'{folder}' holds no speculator: {_WANTED}.")


def _refused(folder: Path, what: str) -> UnsupportedArchitectureError:
    return UnsupportedArchitectureError(
        f"'{folder}' holds a speculator of the format {what}; those {_READ} can be exported."
    )

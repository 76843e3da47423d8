"""A model in Hugging Face format, in a folder: checked before anything heavy is imported."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reader_edge_export.sources.architectures import check_architecture, is_mixture, max_context_of
from reader_edge_export.sources.config.hf_config import hf_config
from reader_edge_export.sources.folder.folder_files import check_entries, check_names, read_json, weight_files
from reader_edge_export.sources.folder.mlx_layout import check_layout
from reader_edge_export.sources.folder.stored_tensors import stored_tensors
from reader_edge_export.sources.generation import end_ids, other_choices, own_sampling
from reader_edge_export.sources.pooling import folder_pooling
from reader_edge_export.sources.quantized.formats import (
    MXFP4,
    Quantization,
    plain_config,
    quantization_of,
    with_quantization_config,
)
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.text_part import has_other_modules, other_modules, text_config_of
from reader_edge_runtime.errors import ExportError, TokenizerError
from reader_edge_runtime.package.manifest import MANIFEST_NAME, MAX_VOCAB, sha256_of
from reader_edge_runtime.package.manifest_file import read_manifest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from reader_edge_export.sources.source_model import SourceModel

OTHER_TOKENIZERS = ("tokenizer.model", "tekken.json", "spiece.model", "vocab.json", "vocab.txt", "merges.txt")
_GENERATION_NAME = "generation_config.json"
_WEIGHT_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True, slots=True)
class HuggingFaceSource(Source):
    """A folder that holds a supported model.

    quantization: what another tool did to its weights, None if nothing. is_part: whether the folder's model is more,
    for images or later tokens, of which this is the text model. other_modules: those of the folder that are not.
    """

    folder: Path
    quantization: Quantization | None = None
    is_part: bool = False
    other_modules: tuple[str, ...] = ()

    def own_pooling(self) -> str:
        return folder_pooling(self.folder, self.config)

    @property
    def left_out(self) -> tuple[str, ...]:
        return self.other_modules

    def sampling(self) -> dict[str, float]:
        return own_sampling(_generation_config(self.folder), f"'{self.folder / _GENERATION_NAME}'")

    def other_choices(self) -> tuple[str, ...]:
        return other_choices(_generation_config(self.folder))

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.is_file())

    def fingerprint(self) -> str:
        """SHA-256 over config.json and the weight files: one line "<sha256>  <name>" each, sorted by name."""
        paths = sorted([self.folder / "config.json", *weight_files(self.folder)], key=lambda path: path.name)
        lines = "".join(f"{sha256_of(path)}  {path.name}\n" for path in paths)
        return hashlib.sha256(lines.encode()).hexdigest()

    def open_model(self) -> "SourceModel":
        from reader_edge_export.sources.folder.folder_weights import open_folder

        packed = None if self._has_kept_experts else self.quantization
        # An embedding model has no logit head, be it tied or not (Qwen3-Embedding-8B): the other one takes its place.
        headless = {"tie_word_embeddings": True} if self.pooling == "last" else {}
        return open_folder(self.folder, plain_config(self.config) | headless, self.is_part, packed)

    @property
    def is_kept(self) -> bool:
        is_dense = self.quantization is not None and self.quantization.is_in_mxfp4 and not is_mixture(self.config)
        return is_dense or self._has_kept_experts

    def check_keepable(self) -> None:
        if not self.is_kept:
            raise self._nothing_to_keep()

    @property
    def _has_kept_experts(self) -> bool:
        """Whether experts, nearly all of the model, stay as they are in the folder."""
        return self.quantization is not None and self.quantization.method == MXFP4

    def load_tokenizer(self, vocab_size: int) -> "PreTrainedTokenizerFast":
        from reader_edge_export.sources.folder.folder_tokenizer import load_tokenizer

        return load_tokenizer(self.folder, vocab_size)

    def special_token_ids(self, tokenizer: "PreTrainedTokenizerFast") -> tuple[tuple[int, ...], int | None]:
        """Ends by generation_config.json, else by the config, and by the tokenizer, and what else its vocabulary has.

        The token that begins a text is that of the first of these which names one.
        """
        generation = _generation_config(self.folder)
        named = _first_ids("eos_token_id", generation, self.config) + _ids("eos_token_id", tokenizer.eos_token_id)
        bos = _first_ids("bos_token_id", generation, self.config) or _ids("bos_token_id", tokenizer.bos_token_id)
        special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        return end_ids(named, tokenizer.get_vocab(), special), bos[0] if bos else None


def check_folder(folder: Path) -> None:
    """Raise ExportError, or PackageError for a broken package, unless a folder holds a model of a known kind."""
    if not folder.is_dir():
        raise ExportError(f"No model at '{folder}': give a folder in Hugging Face format or a GGUF file.")
    check_entries(folder)
    if (folder / MANIFEST_NAME).is_file() and not (folder / "config.json").exists():
        made_of = read_manifest(folder).source_name
        raise ExportError(f"'{folder}' is a package: give what it was exported from, {made_of!r:.80}.")
    config = read_json(folder / "config.json")
    check_architecture(text_config_of(config) or config)


def find_folder(name: str | Path, max_context: int | None) -> HuggingFaceSource:
    """Check a model in a folder.

    Raises ExportError, UnsupportedArchitectureError or TokenizerError, with the remedy in one sentence.
    """
    folder = Path(name)
    check_folder(folder)
    source = _checked(str(name), folder, max_context)
    _check_tokenizer(folder)
    for name in ("eos_token_id", "bos_token_id"):
        _first_ids(name, _generation_config(folder))
        _first_ids(name, source.config)
    return source


def _checked(name: str, folder: Path, max_context: int | None) -> HuggingFaceSource:
    whole = read_json(folder / "config.json")
    text, tensors = text_config_of(whole), stored_tensors(folder)
    config = with_quantization_config(text or whole, folder, tensors)
    hf_config(plain_config(config))
    weight_type = _WEIGHT_TYPES.get(str(config.get("dtype") or config.get("torch_dtype")))
    types = () if weight_type is None else (weight_type,)
    quantization = quantization_of(config)
    if quantization is None:
        check_names(folder)
    else:
        types = (*quantization.weight_types, *types)
    check_layout(config, tensors)
    is_part = text is not None or has_other_modules(config, tensors)
    context, modules = max_context_of(config, max_context), other_modules(config, tensors) if is_part else ()
    return HuggingFaceSource(name, config, context, types, folder, quantization, is_part, modules)


def _generation_config(folder: Path) -> dict[str, Any]:
    path = folder / _GENERATION_NAME
    return read_json(path) if path.exists() else {}


def _check_tokenizer(folder: Path) -> None:
    if (folder / "tokenizer.json").is_file():
        return
    others = [name for name in OTHER_TOKENIZERS if (folder / name).is_file()]
    held = f", only {' and '.join(others)}" if others else ""
    raise TokenizerError(
        f"'{folder}' holds no tokenizer.json{held}: save the model's fast tokenizer there "
        "(AutoTokenizer.from_pretrained(...).save_pretrained(...))."
    )


def _first_ids(name: str, *configs: Mapping[str, Any]) -> tuple[int, ...]:
    return next((ids for config in configs if (ids := _ids(name, config.get(name)))), ())


def _ids(name: str, value: object) -> tuple[int, ...]:
    """Token ids given as one, as a list, or not at all."""
    ids = () if value is None else tuple(value) if isinstance(value, list) else (value,)
    if not all(type(token_id) is int and 0 <= token_id < MAX_VOCAB for token_id in ids):
        raise ExportError(f"The model's config gives {name} as {value!r:.80}, which are no token ids: correct it.")
    return ids

"""What a GGUF file is, as far as its header tells: also of models that cannot be exported."""

import math
from dataclasses import dataclass
from pathlib import Path

from reader_edge_export.libraries import check_installation, quiet_libraries
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.gguf_source import GgufSource
from reader_edge_export.sources.gguf.tokenizer import build_tokenizer
from reader_edge_runtime.errors import InstallationError, ReaderEdgeError
from reader_edge_runtime.untrusted.gguf_header import Value

_MAX_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """The tensors of one type."""

    num_tensors: int
    num_values: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufSummary:
    """What a file says of itself; "" and None where it says nothing. Texts can be shown, on one line.

    tensors: by type, most bytes first. refusal: why the model cannot be exported, None where it can. sampling: as of
    `Manifest`; {} where it cannot. is_compared: whether its tensors were compared with the model's.
    """

    file: str
    num_bytes: int
    name: str
    licence: str
    architecture: str
    num_parameters: int
    num_layers: int | None
    num_experts: int | None
    num_experts_per_token: int | None
    num_heads: int | None
    num_kv_heads: int | None
    hidden_size: int | None
    vocab_size: int | None
    context: int | None
    tokenizer: str
    has_chat_template: bool
    tensors: dict[str, TensorGroup]
    refusal: str | None
    sampling: dict[str, float]
    is_compared: bool


def summary_of(path: Path) -> GgufSummary:
    """Read a file's header and try what an export tries before it reads weights, as far as its libraries are here.

    Raises GgufError.
    """
    file = GgufFile.open(path)
    groups = _groups(file)
    sampling, refusal, is_compared = _tried(file)
    architecture = _text(file, "general.architecture")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    tokenizer = [_text(file, f"tokenizer.ggml.{key}") for key in ("model", "pre")]
    return GgufSummary(
        file=str(path),
        num_bytes=file.num_bytes,
        name=_text(file, "general.name"),
        licence=_text(file, "general.license"),
        architecture=architecture,
        num_parameters=sum(group.num_values for group in groups.values()),
        num_layers=_number(file, f"{architecture}.block_count"),
        num_experts=_number(file, f"{architecture}.expert_count"),
        num_experts_per_token=_number(file, f"{architecture}.expert_used_count"),
        num_heads=_number(file, f"{architecture}.attention.head_count"),
        num_kv_heads=_number(file, f"{architecture}.attention.head_count_kv"),
        hidden_size=_number(file, f"{architecture}.embedding_length"),
        vocab_size=len(tokens) if isinstance(tokens, list) else None,
        context=_number(file, f"{architecture}.context_length"),
        tokenizer=", ".join(part for part in tokenizer if part),
        has_chat_template=bool(_text(file, "tokenizer.chat_template")),
        tensors=groups,
        refusal=refusal,
        sampling=sampling,
        is_compared=is_compared,
    )


def _groups(file: GgufFile) -> dict[str, TensorGroup]:
    groups = {}
    for kind in file.weight_types():
        tensors = [tensor for tensor in file.tensors.values() if tensor.kind.name == kind]
        num_values = sum(math.prod(tensor.shape) for tensor in tensors)
        groups[kind] = TensorGroup(len(tensors), num_values, sum(tensor.num_bytes for tensor in tensors))
    return groups


def _tried(file: GgufFile) -> tuple[dict[str, float], str | None, bool]:
    """What the file recommends, why it cannot be exported, and whether its tensors were compared."""
    try:
        source = GgufSource.of(file, None)
        build_tokenizer(source.vocabulary)
        return source.sampling(), None, _is_compared(source)
    except ReaderEdgeError as error:
        return {}, _shown(str(error)), True


def _is_compared(source: GgufSource) -> bool:
    """Compare tensors with those of the model where there is what knows them. Raises GgufError where they differ."""
    try:
        check_installation(("torch", "transformers"))
    except InstallationError:
        return False
    with quiet_libraries():
        from reader_edge_export.sources.gguf.weights import compared_model

        compared_model(source.file, source.config)
    return True


def _text(file: GgufFile, key: str) -> str:
    value = file.metadata.get(key)
    return _shown(value) if isinstance(value, str) else ""


def _number(file: GgufFile, key: str) -> int | None:
    """Of a number for each layer the largest, since layers without such a thing have 0."""
    value: Value | None = file.metadata.get(key)
    numbers = value if isinstance(value, list) else [value]
    return max((number for number in numbers if type(number) is int), default=None)


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:_MAX_CHARACTERS])

"""A speculator's module without memory, every tensor and every size compared with its config and with the target."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from reader_edge_export.sources.blank_model import built_config, without_memory
from reader_edge_export.sources.config.hf_config import hf_config
from reader_edge_export.sources.folder.folder_weights import weights_of
from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_export.sources.quantized.formats import plain_config
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.sources.weights import Weights
from reader_edge_export.speculators.block_networks import BlockModule
from reader_edge_export.speculators.formats.block_folders import block_config, block_state_ids
from reader_edge_export.speculators.formats.folders import SpeculatorFiles, usual_state_ids
from reader_edge_export.speculators.networks import Eagle3Config, Eagle3Module, MlpModule, MtpModule
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from reader_edge_runtime.package.package_parts import DFLASH, EAGLE3, MLP, MTP

_WHOLE = ("I64", "I32")
_GROWING = ("dynamic", "longrope")
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


def read_vocabulary_map(
    folder: Path, maps: Mapping[str, StoredTensor], draft_vocab_size: int, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(d2t int64 (Vd,), t2d bool (V,)) as `SpeculatorModule` has them; the second follows from the first.

    Raises ExportError where d2t is missing, has another size or type, or leads out of the target's vocabulary or to
    one token twice, and where t2d says otherwise.
    """
    offsets = _read_map(folder, maps, "d2t", draft_vocab_size)
    if offsets is None:
        raise ExportError(
            f"The speculator in '{folder}' has {draft_vocab_size} of {vocab_size} tokens and lacks d2t, which tells "
            "them: fetch it again."
        )
    numbers = torch.arange(draft_vocab_size)
    # An offset of 64 bits may wrap around: compared before it is added.
    is_outside = (offsets < -numbers) | (offsets >= vocab_size - numbers)
    if is_outside.any():
        number = int(is_outside.nonzero()[0])
        raise ExportError(
            f"The speculator in '{folder}' leads token {number} by {int(offsets[number])} out of the {vocab_size} "
            "tokens of its target: it is for another model, or damaged."
        )
    known = torch.zeros(vocab_size, dtype=torch.bool)
    known[offsets + numbers] = True
    if int(known.sum()) < draft_vocab_size:
        raise ExportError(f"The speculator in '{folder}' has a token of its target twice in d2t: fetch it again.")
    stated = _read_map(folder, maps, "t2d", vocab_size)
    if stated is not None and not torch.equal(stated.bool(), known):
        raise ExportError(
            f"The maps d2t and t2d of the speculator in '{folder}' contradict each other: fetch it again."
        )
    return offsets, known


def check_identity(folder: Path, maps: Mapping[str, StoredTensor], vocab_size: int) -> None:
    """Raise ExportError where maps of a speculator that has all of its target's tokens change or lack any of them."""
    offsets, known = (_read_map(folder, maps, name, vocab_size) for name in ("d2t", "t2d"))
    if (offsets is not None and offsets.any()) or (known is not None and not known.all()):
        raise ExportError(
            f"The speculator in '{folder}' has all {vocab_size} tokens of its target and maps some of them to others: "
            "fetch it again."
        )


def _read_map(folder: Path, maps: Mapping[str, StoredTensor], name: str, size: int) -> torch.Tensor | None:
    tensor = maps.get(name)
    return None if tensor is None else read_whole(folder, tensor, name, size)


def read_whole(folder: Path, tensor: StoredTensor, name: str, size: int) -> torch.Tensor:
    """Whole numbers of a speculator, int64 (size,). Raises ExportError for what is none, or not so many."""
    types = (*_WHOLE, "BOOL", "U8") if name == "t2d" else _WHOLE
    if tensor.shape != (size,) or tensor.dtype not in types:
        raise ExportError(
            f"The speculator in '{folder}' holds {name} as {tensor.dtype} of the shape {tensor.shape}, which must be "
            f"({size},) whole numbers: fetch it again."
        )
    return tensor.read().long()


@dataclass(frozen=True, slots=True)
class TargetSizes:
    """What a speculator has to fit: layers L, hidden size E and vocabulary V of the target."""

    num_layers: int
    hidden_size: int
    vocab_size: int

    @classmethod
    def of(cls, target: Source) -> "TargetSizes":
        """By what its config says."""
        config: Any = built_config(hf_config(plain_config(target.config)), target.short_name)
        return cls(config.num_hidden_layers, config.hidden_size, config.vocab_size)


@dataclass(frozen=True, slots=True)
class OpenSpeculator:
    """A speculator that fits its target. state_ids: in the order in which they are joined.

    module: its weights are placeholders. weights: its own.
    """

    source: SpeculatorFiles
    module: SpeculatorModule
    weights: Weights
    lent: tuple[str, ...]
    state_ids: tuple[int, ...]

    @classmethod
    def of(cls, source: SpeculatorFiles, sizes: TargetSizes) -> "OpenSpeculator":
        """Compare files and config of a speculator with its target. Nothing is read but vocabulary maps.

        Raises ExportError with one sentence for what does not fit.
        """
        folder, tensors = source.folder, dict(source.tensors)
        args = hf_config(source.layer)
        _check_num_layers(source, args.get("num_hidden_layers", 0))
        config: Any = built_config(args, str(folder))
        check_rotary(source, config)
        _check_sizes(source, config, sizes)
        state_ids = _state_ids(source, sizes, config.num_hidden_layers)
        maps: dict[str, StoredTensor] = {name: tensors.pop(name) for name in ("d2t", "t2d") if name in tensors}
        lent = tuple(name for name in (EMBEDDING, HEAD) if name not in tensors)
        _check_lent(source, config, sizes, lent)
        draft_vocab_size = source.draft_vocab_size or sizes.vocab_size
        if source.format in (EAGLE3, DFLASH):
            _check_joined(source, tensors, len(state_ids), sizes)

        def build() -> SpeculatorModule:
            if source.format == MTP:
                return MtpModule(config)
            if source.format == MLP:
                return MlpModule(config, draft_vocab_size)
            if source.format == DFLASH:
                return BlockModule(block_config(source, config, draft_vocab_size, len(state_ids), sizes.hidden_size))
            eagle3 = Eagle3Config(config, draft_vocab_size, len(state_ids), sizes.hidden_size, **source.switches)
            return Eagle3Module(eagle3)

        module = cast(SpeculatorModule, without_memory(build, str(folder)))
        weights = weights_of(folder, module, tensors, lent)
        if module.d2t is not None:
            module.d2t, module.t2d = read_vocabulary_map(folder, maps, draft_vocab_size, sizes.vocab_size)
        elif maps:
            check_identity(folder, maps, sizes.vocab_size)
        return cls(source, module, weights, lent, state_ids)

    @property
    def lends_embedding(self) -> bool:
        """Whether the embedding is the target's."""
        return EMBEDDING in self.lent

    def with_target(self, target: SourceModel) -> SourceModel:
        """The model whose matrices are this one's, and the target's where it has none."""
        skeleton: Any = target.skeleton
        names = {
            EMBEDDING: target.names[id(skeleton.get_input_embeddings().weight)],
            HEAD: target.names[id(skeleton.get_output_embeddings().weight)],
        }
        lent = {name: names[name] for name in self.lent}
        if len(set(lent.values())) < len(lent):  # one matrix there is one matrix here
            self.module.lm_head.weight = self.module.embed_tokens.weight
        return SourceModel(self.module, SpeculatorWeights(self.weights, target.weights, lent))


class SpeculatorWeights(Weights):
    """own: by the names of the module's parameters. lent: names of those that are the target's -> its names."""

    def __init__(self, own: Weights, target: Weights, lent: Mapping[str, str]) -> None:
        self._own = own
        self._target = target
        self.lent = lent

    def read(self, name: str) -> Float32Array:
        return self._source(name).read(self._name(name))

    def read_rows(self, name: str, start: int, stop: int) -> Float32Array:
        return self._source(name).read_rows(self._name(name), start, stop)

    def read_expert(self, name: str, expert: int) -> Float32Array:
        return self._own.read_expert(name, expert)

    def _source(self, name: str) -> Weights:
        return self._target if name in self.lent else self._own

    def _name(self, name: str) -> str:
        return self.lent.get(name, name)


def check_rotary(source: SpeculatorFiles, config: Any) -> None:
    """Raise UnsupportedArchitectureError for angles that hang on a text's length: a graph has those of short ones."""
    rotary = config.rope_parameters or {}
    kinds = [each.get("rope_type") for each in (rotary, *rotary.values()) if isinstance(each, dict)]
    for kind in filter(_GROWING.__contains__, kinds):
        raise UnsupportedArchitectureError(
            f"The layers of the speculator in '{source.folder}' have rotary embeddings of the kind {kind!r}, which "
            "change as a text grows and which no package holds: give one with others."
        )


def _check_num_layers(source: SpeculatorFiles, num_layers: int) -> None:
    """Before a config's class goes through them all."""
    if source.format in (EAGLE3, DFLASH) and num_layers > len(source.tensors):
        raise ExportError(
            f"The speculator in '{source.folder}' has {num_layers} layers by its config.json, and "
            f"{len(source.tensors)} tensors: correct num_hidden_layers."
        )


def _check_sizes(source: SpeculatorFiles, config: Any, sizes: TargetSizes) -> None:
    if config.vocab_size != sizes.vocab_size:
        raise unlike(source, "a vocabulary", config.vocab_size, sizes.vocab_size)
    if (source.draft_vocab_size or 0) > sizes.vocab_size:
        raise unlike(source, "a vocabulary", source.draft_vocab_size, sizes.vocab_size)
    if source.target_size not in (None, sizes.hidden_size):
        raise unlike(source, "hidden states", source.target_size, sizes.hidden_size)
    if source.format != EAGLE3 and config.hidden_size != sizes.hidden_size:
        raise unlike(source, "hidden states", config.hidden_size, sizes.hidden_size)
    if config.num_attention_heads % config.num_key_value_heads:
        raise ExportError(
            f"The speculator in '{source.folder}' has {config.num_attention_heads} query heads over "
            f"{config.num_key_value_heads} key heads by its config.json: correct them."
        )


def _state_ids(source: SpeculatorFiles, sizes: TargetSizes, num_layers: int) -> tuple[int, ...]:
    """num_layers: of the speculator itself."""
    last = sizes.num_layers + 1  # behind the final norm, which the target's logits are made of too
    if source.format not in (EAGLE3, DFLASH):
        return (last,)
    most, is_given = sizes.num_layers, source.state_ids is not None
    ids = source.state_ids or usual_state_ids(most)
    if source.block is not None:
        named = source.block.num_target_layers
        if named not in (None, sizes.num_layers):
            raise unlike(source, "a number of layers", named, sizes.num_layers)
        ids, is_given = block_state_ids(source, num_layers, sizes.num_layers), source.block.layer_ids is not None
        most = last
    if any(not 0 <= each <= most for each in ids) or len(set(ids)) < len(ids):
        verb = "says that it reads" if is_given else "does not say which states it reads, and usual ones are"
        raise ExportError(
            f"The speculator in '{source.folder}' {verb} {', '.join(map(str, ids))}, which must be different layers "
            f"from 0 to {sizes.num_layers} of its target: it is for another model."
        )
    return ids


def _check_lent(source: SpeculatorFiles, config: Any, sizes: TargetSizes, lent: tuple[str, ...]) -> None:
    """The target's matrices take the place of those that are missing, where they fit."""
    if lent and config.hidden_size != sizes.hidden_size:
        raise ExportError(
            f"The speculator in '{source.folder}' lacks {lent[0]}, and the target's has {sizes.hidden_size} columns "
            f"instead of {config.hidden_size}: fetch it again."
        )
    if HEAD in lent and (source.draft_vocab_size or sizes.vocab_size) != sizes.vocab_size:
        raise ExportError(
            f"The speculator in '{source.folder}' lacks {HEAD} for its own vocabulary of {source.draft_vocab_size} "
            "tokens: fetch it again."
        )


def _check_joined(
    source: SpeculatorFiles, tensors: Mapping[str, StoredTensor], num_states: int, sizes: TargetSizes
) -> None:
    """Raise ExportError where what joins states has room for others than the target's."""
    joined = tensors.get("fc.weight")
    if joined is None or len(joined.shape) != 2 or joined.shape[1] == num_states * sizes.hidden_size:
        return
    raise ExportError(
        f"The speculator in '{source.folder}' joins {joined.shape[1]} numbers of its target, where {num_states} states "
        f"of this one have {num_states * sizes.hidden_size}: it is for another model, or reads other layers."
    )


def unlike(source: SpeculatorFiles, what: str, own: object, target: object) -> ExportError:
    """For a speculator of another model. what: it has otherwise."""
    return ExportError(
        f"The speculator in '{source.folder}' is for {what} of {own}, and the model has {target}: give the speculator "
        "of this model."
    )

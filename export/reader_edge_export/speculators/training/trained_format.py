"""What each format has of its own in the training of a speculator: its network, how that begins, and its folder."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.chains import chain_reads
from reader_edge_export.speculators.training.state_recorder import RecordedAnswer
from reader_edge_runtime.arrays import Float32Array, Int32Array
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target

MAX_IDS = 4096  # that training looks at: a logit head of more takes most of a step
ROPE_THETA = 10_000.0

_INNER = 2  # numbers between the two products of its MLP, for each of a state: three gain nothing
_EPSILON = 1e-6
_PLACES = 10_000  # of answers, which tell how large the numbers of a state are


@dataclass(frozen=True, slots=True)
class TrainingInputs:
    """What a network begins from. ids: int32, that the target names most often, in ascending order, MAX_IDS at most.

    columns: of the states that the target reports, those that the network reads.
    """

    package: ModelPackage
    target: Target
    answers: Sequence[RecordedAnswer]
    ids: Int32Array
    columns: Sequence[int]


class TrainedFormat(ABC):
    """name: of the format, as `SpeculatorPart` has it. shape: of `Batches`."""

    name: str
    shape: tuple[int, int] | None = None

    def state_ids(self, manifest: Manifest) -> tuple[int, ...]:
        """Of the target's states those that it reads: the one behind the final norm, unless a format has others.

        Raises ExportError where a package does not report them.
        """
        return reported(manifest, (manifest.num_layers + 1,))

    @abstractmethod
    def untrained(self, manifest: Manifest) -> SpeculatorModule:
        """A network whose passes take as long as those of a trained one."""

    @abstractmethod
    def begin(self, inputs: TrainingInputs) -> tuple[SpeculatorModule, torch.Tensor]:
        """A network with first weights, and the scale of states by which training divides them: float32 (J * E,)."""

    def reads(
        self, module: SpeculatorModule, states: torch.Tensor, ids: torch.Tensor, places: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Of each token ahead, the places whose tokens come before it, and what the logit head reads of it (B, n, E).

        As `chain_reads`, which it is where tokens are drafted one after another.
        """
        return chain_reads(module, states, ids, places)

    def tensors(self, module: SpeculatorModule, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        """Those that a folder has. scale: as `begin` gives it."""
        tensors = {name: value for name, value in module.state_dict().items() if name != "embed_tokens.weight"}
        return tensors | {"fc.weight": tensors["fc.weight"] / scale}

    @abstractmethod
    def config(self, module: SpeculatorModule, state_ids: Sequence[int]) -> Mapping[str, Any]:
        """What config.json says, beside what it says in every format."""


def reported(manifest: Manifest, state_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The same states. Raises ExportError where a package does not report them."""
    if manifest.hidden_size is None or not set(state_ids) <= set(manifest.state_ids):
        states = f"state{'s' if len(state_ids) > 1 else ''} {', '.join(map(str, state_ids))}"
        raise ExportError(
            f"The package, made of '{manifest.source_name}', does not report the {states}, which a speculator reads: "
            "export the model again, for the CPU."
        )
    return state_ids


def middle_state_ids(manifest: Manifest) -> tuple[int, ...]:
    """Three states that EAGLE-3 reads where nothing says otherwise. Raises ExportError as `reported`."""
    last = manifest.num_layers
    return reported(manifest, tuple(sorted({min(2, last), last // 2, max(last - 3, 0)})))


def new_layer(kind: type[LlamaConfig] | type[Qwen3Config], manifest: Manifest, size: int) -> PretrainedConfig:
    """The config of one decoder layer over states of this size."""
    return kind(
        vocab_size=manifest.vocab_size,
        hidden_size=size,
        intermediate_size=_INNER * size,
        num_hidden_layers=1,
        num_attention_heads=manifest.num_heads,
        num_key_value_heads=manifest.num_kv_heads,
        head_dim=manifest.head_dim,
        max_position_embeddings=manifest.max_context,
        rms_norm_eps=_EPSILON,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=False,
    )


def few_tokens(manifest: Manifest) -> tuple[Manifest, Int32Array, Float32Array]:
    """A target of few tokens, those that a network could name of it, and a table of embeddings.

    Of a table a pass reads as many rows, however many there are.
    """
    num_ids = min(MAX_IDS, manifest.vocab_size)
    table: Float32Array = np.zeros((num_ids + 1, manifest.hidden_size or 0), np.float32)
    return replace(manifest, vocab_size=len(table), eos_token_ids=(0,)), np.arange(num_ids, dtype=np.int32), table


def embed(module: SpeculatorModule, embedding: Float32Array) -> None:
    """Have a network look up the target's rows (V, E), which are not trained."""
    module.embed_tokens.weight = torch.nn.Parameter(torch.from_numpy(embedding.astype("float16")), requires_grad=False)


def silence(layer: Any) -> None:
    """Have a decoder layer add nothing to its states yet."""
    for product in (layer.self_attn.o_proj, layer.mlp.down_proj):
        torch.nn.init.zeros_(product.weight)


def name_ids(module: SpeculatorModule, ids: Int32Array) -> None:
    """Have a network's own vocabulary be these of the target's ids, ascending: int32 (Vd,)."""
    if module.d2t is not None and module.t2d is not None:
        module.d2t.copy_(torch.from_numpy(ids) - torch.arange(len(ids)))
        module.t2d[torch.from_numpy(ids).long()] = True


def state_sample(inputs: TrainingInputs) -> torch.Tensor:
    """States of the target at some thousand places of its answers: float32 (n, J * E)."""
    parts, num_places = [], 0
    for answer in inputs.answers:
        parts.append(answer.states)
        num_places += len(answer.states)
        if num_places >= _PLACES:
            break
    return torch.from_numpy(np.concatenate(parts)).float()

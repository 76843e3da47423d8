"""Disk space that an export takes, estimated from the sizes of the source's matrices before the work begins."""

import shutil
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reader_edge_export.calibration.calibrate import expert_input_sizes, matrix_sizes
from reader_edge_export.calibration.calibration import moment_bytes
from reader_edge_export.calibration.sensitivity import gradient_sizes
from reader_edge_export.journal import MOMENTS_NAME, WORK_NAME
from reader_edge_export.onnx_graph.shared_constants import BLOCK_INPUTS, MAX_BLOCK
from reader_edge_export.operators.hadamard_linear import MAX_INPUTS
from reader_edge_export.options import ExportOptions
from reader_edge_export.package.layered_package import MAX_PART_BYTES
from reader_edge_export.package.successors import num_table_tokens
from reader_edge_export.package_graph import TOP_K
from reader_edge_export.quantize.vocabulary import lookup_block
from reader_edge_export.sources.source_model import SourceModel, vocab_size_of
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import PRECISIONS, WEIGHTS_NAME, Precision

# Products that read the rows of another, if it exists, and share its moments.
_FIRST = {
    **dict.fromkeys(("k_proj", "v_proj"), "q_proj"),
    **dict.fromkeys(("in_proj_z", "in_proj_b", "in_proj_a"), "in_proj_qkv"),
    "in_proj_ba": "in_proj_qkvz",
    "kv_a_proj_with_mqa": "q_proj",
    "up_proj": "gate_proj",
    "gate_proj": "q_proj",  # of an attention that has one
    "w3": "w1",
    "altup_projections": "per_layer_model_projection",
}
_PADDING = 4096  # in front of a tensor, at most
_LAYER_BYTES = 1 << 16  # in the trace and in the graph
_SUCCESSOR_BYTES = 8 * TOP_K


@dataclass(frozen=True, slots=True)
class PackageSize:
    """Bytes, at most. weights: of the package's file of them. moments: what calibration keeps. others: all else.

    is_least: whether weights may be more. The tokenizer is not among them: it is written by then.
    """

    weights: int
    moments: int
    others: int
    is_least: bool = False

    @classmethod
    def of(cls, model: SourceModel, options: ExportOptions, in_eight_bits: Set[str] | None = None) -> "PackageSize":
        """Of an export with these options, whose precision is not AUTO.

        in_eight_bits: the parameters that int4 leaves in eight bits; None before they are known.
        """
        stored = PRECISIONS[options.precision]
        numbers = {name: parameter.numel() for name, parameter in model.skeleton.named_parameters()}
        others = _LAYER_BYTES * model.skeleton.config.num_hidden_layers
        if options.check == "full":
            vocab_size = vocab_size_of(model.skeleton)
            others += _SUCCESSOR_BYTES * num_table_tokens(vocab_size, model.num_parameters)
        if stored.has_twin and options.check != "none":
            others += min(4 * model.num_parameters, _part_of_twin(model))
        padding = _PADDING * len(numbers)
        if stored.num_planes:
            weights, moments = _quantized(model, stored, numbers, in_eight_bits or frozenset())
            return cls(weights + padding, moments, others, stored.is_four_bit and in_eight_bits is None)
        return cls(int(stored.weight_bytes) * model.num_parameters + padding, 0, others)


def _part_of_twin(model: SourceModel) -> int:
    """Bytes of a part of the fp32 twin of a bf16 package: as many layers as it may have, or one, and a vocabulary."""
    vocabulary: Any = model.skeleton.get_input_embeddings().weight
    layer = model.num_parameters // int(model.skeleton.config.num_hidden_layers)
    return max(MAX_PART_BYTES, 4 * (layer + int(vocabulary.numel())))


def check_room(folder: Path, size: PackageSize) -> None:
    """Raise ExportError unless an export into a folder, which may have a part of it already, has room on its disk."""
    paths = (folder / WEIGHTS_NAME, folder / WORK_NAME / MOMENTS_NAME)
    written = sum(path.stat().st_size for path in paths if path.exists())
    needed, free = size.weights + size.moments + size.others - written, shutil.disk_usage(folder).free
    if needed > free:
        total = f"at least {needed / 1e9:.2f}" if size.is_least else f"{needed / 1e9:.2f}"
        raise ExportError(
            f"The export takes {total} GB on the disk of '{folder.parent}', which has {free / 1e9:.2f} GB left: free "
            "some space, or choose a folder on another disk."
        )


def _quantized(
    model: SourceModel, stored: Precision, numbers: Mapping[str, int], in_eight_bits: Set[str]
) -> tuple[int, int]:
    """Bytes of the weights and of what calibration keeps. numbers: of each parameter."""
    products = matrix_sizes(model)
    heads = {each.name: (each.keys.shape, each.values.shape) for each in model.latent_heads}
    both = [matrices for each in model.experts.values() for matrices in (each.up, each.down)]
    experts = {matrices.name: matrices.shape for matrices in both}
    types = {name: model.weights.block_type(name) if stored.keeps_blocks else None for name in numbers}
    widths = {name: model.skeleton.get_parameter(name).shape[1] for name in model.table_names}
    # What spreads: for int8, for int4, and for experts.
    weights = 4 * MAX_BLOCK**2 * (1 + stored.is_four_bit + bool(experts or heads))
    for name, num_numbers in numbers.items():
        block_type = types[name]
        if name in heads:
            weights += sum(count * _rounded(width, size, is_int4=False) for count, size, width in heads[name])
        elif name in experts and block_type is None:
            num_experts, num_outputs, num_inputs = experts[name]
            weights += num_experts * _rounded(num_inputs, num_outputs, is_int4=stored.is_four_bit)
        elif name not in products and name not in experts and name not in widths:
            weights += 4 * num_numbers
        elif block_type is not None:
            weights += block_type.num_bytes(num_numbers)
        elif name in products:
            weights += _rounded(*products[name], is_int4=stored.is_four_bit and name not in in_eight_bits)
        else:
            weights += num_numbers + 4 * num_numbers // lookup_block(widths[name])
    if all(types[name] is not None for name in (*products, *experts)):
        return weights, 0
    counted = [num_inputs for name, (num_inputs, _) in products.items() if _first_of(name) not in products]
    counted += [each.up.shape[2] for each in model.experts.values()]
    of_experts = 4 * sum(expert_input_sizes(model).values())
    gradients = 4 * sum(gradient_sizes(model).values()) if stored.is_four_bit else 0
    return weights, sum(map(moment_bytes, counted)) + of_experts + gradients


def _first_of(name: str) -> str | None:
    """Parameter of the product whose rows this one reads too."""
    *module, product, kind = name.split(".")
    if product.isdecimal():  # of a list
        *module, product = module
    return ".".join((*module, _FIRST[product], kind)) if product in _FIRST else None


def _rounded(num_inputs: int, num_outputs: int, is_int4: bool) -> int:
    """Bytes of a matrix."""
    own = 4 * (num_inputs + num_outputs)  # smoothing and scales
    if not is_int4 or num_inputs > MAX_INPUTS:
        return own + num_inputs * num_outputs
    num_blocks = num_outputs * -(-num_inputs // BLOCK_INPUTS)
    return own + num_blocks * (BLOCK_INPUTS // 2 + 1)

"""The graph of a tower: traced with markers of its matrices, and written beside that of the text model."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import onnx_ir as ir
import torch
from onnx_ir.passes import common
from transformers import PretrainedConfig

from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.images.towers import ATTENTION_NAME, IMAGE_ATTENTION, TOWERS, Tower
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.options import ExportOptions
from reader_edge_export.package_graph import GraphKind, write_graph
from reader_edge_export.progress import Advance, Progress
from reader_edge_export.quantize.gguf_products import GgufProducts
from reader_edge_export.quantize.int8 import Int8Products
from reader_edge_export.quantize.linear import MergedProduct, replace_products
from reader_edge_export.sources.blank_model import built_config, make_plain, without_memory
from reader_edge_export.sources.folder.folder_weights import weights_of
from reader_edge_export.sources.folder.stored_tensors import stored_tensors
from reader_edge_export.sources.gguf.mmproj_weights import MmprojWeights
from reader_edge_export.sources.image_part import ImagePart
from reader_edge_export.sources.quantized.packing import FLOATS
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.sources.weights import Weights
from reader_edge_export.trace.tracing import named_matrices
from reader_edge_export.trace.tree_config import TRACE_OPSET
from reader_edge_runtime.errors import ExportError, GgufError
from reader_edge_runtime.package.manifest import MASKED, PRECISIONS, FileEntry, Precision
from reader_edge_runtime.package.package_parts import VISION_GRAPH_NAME, VISION_WEIGHTS_NAME

FEATURES = "image_features"
# What projectors read of the text model's config, and what its class wants to fit their width.
_OF_TEXT = ("model_type", "rms_norm_eps", "num_attention_heads")
_EXAMPLE = 2, 3  # blocks of the traced image


def open_tower(images: ImagePart, text: PretrainedConfig, text_width: int) -> SourceModel:
    """The tower of a model; its skeleton is a `Tower`, whose matrices alone are left where they are.

    text: the config of the text model. text_width: its E. Raises ExportError where its weights do not fit its config.
    """
    name, error = str(images.path), ExportError if images.mmproj is None else GgufError
    own = {key: getattr(text, key) for key in _OF_TEXT if hasattr(text, key)} | {"hidden_size": text_width}
    args = {**images.args, "model_type": images.model_type, "text_config": own}
    config = built_config(args, name, error)
    tower = cast(Tower, without_memory(lambda: TOWERS[images.model_type](config), name, error))
    make_plain(tower)
    if tower.width != text_width:
        raise ExportError(
            f"vision_config gives features of {tower.width} numbers to a text model of {text_width}: correct it."
        )
    weights = _folder_weights(images, tower) if images.mmproj is None else MmprojWeights(images.mmproj.file, tower)
    source = SourceModel(tower, weights)
    _read_odd_weights(source)
    tower.make_plain()
    return source


def _folder_weights(images: ImagePart, tower: Tower) -> Weights:
    folder = images.path
    named = {  # transformers 4 and 5, and makers' own files, have other names around a tower
        name.removeprefix("model.").replace("vision_tower.vision_model.", "vision_tower.", 1): tensor
        for name, tensor in stored_tensors(folder).items()
    }
    tensors = {name: tensor for name, tensor in named.items() if name.partition(".")[0] in images.family.modules}
    odd = next((tensor for tensor in tensors.values() if tensor.dtype not in FLOATS), None)
    if odd is not None:
        raise ExportError(
            f"'{folder}' holds {odd.name!r:.80} as {odd.dtype}, which is read of text models alone: export the model "
            "without its images (--no-images)."
        )
    return weights_of(folder, tower, tensors)


def _read_odd_weights(source: SourceModel) -> None:
    """Read all but matrices of linear layers and tables, which the markers name: convolutions, scales."""
    for module in source.skeleton.modules():
        if not isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            for parameter in module.parameters(recurse=False):
                name = source.names.get(id(parameter))
                if name is not None:
                    parameter.data = torch.from_numpy(source.weights.read(name))


@contextmanager
def attending(tower: torch.nn.Module, implementation: str) -> Iterator[None]:
    """While entered, a tower's attention is the one of this name."""
    modules: list[Any] = [module for module in tower.modules() if hasattr(module, "config")]
    configs = {id(module.config): module.config for module in modules}
    before = {key: config._attn_implementation for key, config in configs.items()}
    for config in configs.values():
        config._attn_implementation = implementation
    try:
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


def trace_tower(source: SourceModel, graph: Path, path: Path) -> None:
    """Write a tower, the skeleton of its source, with its markers to `graph`. path: where it is read, for errors.

    Raises ExportError where its config's sizes do not fit each other.
    """
    tower = cast(Tower, source.skeleton)
    example = tower.example(*_EXAMPLE)
    try:
        with torch.no_grad(), named_matrices(source), attending(tower, ATTENTION_NAME):
            torch.onnx.export(
                tower,
                tuple(example[name] for name in tower.names),
                graph,
                input_names=list(tower.names),
                output_names=[FEATURES],
                dynamic_axes={**{name: tower.axes.get(name, {0: "P"}) for name in tower.names}, FEATURES: {0: "L"}},
                opset_version=TRACE_OPSET,
                dynamo=False,  # the markers are TorchScript's
            )
    except (RuntimeError, ValueError, IndexError) as reason:  # PyTorch's, of sizes that cannot be
        words = " ".join(str(reason).split())
        raise ExportError(
            f"'{path}' describes a tower that cannot be computed ({words:.200}): correct it, or export the model "
            "without its images (--no-images)."
        ) from reason


def write_tower(
    traced: Path, folder: Path, source: SourceModel, precision: str, progress: Progress
) -> dict[str, FileEntry]:
    """Write the graph at `traced` into a folder, and return what was written, by file name.

    precision: of its matrices, one of PRECISIONS in fp32 or eight bits. Nothing is learned from images for rounding.
    """
    tower = cast(Tower, source.skeleton)
    lower = partial(_lower, PRECISIONS[precision], tower.width * (1 + tower.num_deepstack))
    kind = GraphKind(VISION_GRAPH_NAME, VISION_WEIGHTS_NAME, lambda editor, options: None, lower=lower)
    return write_graph(traced, folder, ExportOptions(precision), Calibration(), source, None, progress, kind=kind)


def _lower(stored: Precision, row_size: int, editor: GraphEditor, advance: Advance) -> None:
    """One operator for each attention: as three, it would have a matrix of P x P numbers for each head in memory."""
    for node in list(editor.graph):
        if node.op_type == IMAGE_ATTENTION:
            sizes = {"num_heads": node.attributes["num_heads"].as_int(), "scale": node.attributes["scale"].as_float()}
            query, key, value, *mask = node.inputs
            inputs = [query, key, value]
            if mask:  # the operator's own value for what is not seen could be reached by scores
                inputs, sizes = [*inputs, None, mask[0]], {**sizes, "mask_filter_value": MASKED}
            attended = editor.op("MultiHeadAttention", inputs, sizes, domain="com.microsoft")
            editor.replace(node, [attended])
    for tidy in (
        common.DeduplicateInitializersPass(),
        common.IdentityEliminationPass(),  # weights that are equal come as one, and as copies of it
        common.CommonSubexpressionEliminationPass(),
    ):
        tidy(editor.model)
    if stored.num_planes:
        products = GgufProducts(editor, stored.keeps_blocks, Int8Products(editor, stored.num_planes, False))

        def multiply(product: MergedProduct) -> ir.Value:
            advance(sum(part.size for part in product.parts))
            return products.multiply_stored(product)[0]

        replace_products(editor, multiply, None, products.kind_of)
    common.RemoveUnusedNodesPass()(editor.model)
    common.RemoveUnusedOpsetsPass()(editor.model)
    editor.graph.outputs[0].shape = ir.Shape(["L", row_size])  # which our operators do not tell
    editor.graph.opset_imports[""], editor.model.ir_version = 24, 11  # as of the definitions of our operators

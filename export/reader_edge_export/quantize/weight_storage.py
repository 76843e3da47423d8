"""Stores a package's weights as fp32, fp16, bf16, int8, int4, or as their file has them. Every form is row independent:
a node never changes its neighbours.
"""

from collections.abc import Callable, Set
from functools import partial

import onnx_ir as ir

from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.journal import Journal
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.progress import Advance, unseen
from reader_edge_export.quantize.experts import RoundedExpertProducts, multiply_plainly, replace_experts
from reader_edge_export.quantize.gguf_products import GgufProducts
from reader_edge_export.quantize.hadamard import Hadamards
from reader_edge_export.quantize.half import convert_to_half, store_in_half
from reader_edge_export.quantize.int4 import Int4Products
from reader_edge_export.quantize.int8 import Int8Products, TwoPlaneProducts
from reader_edge_export.quantize.linear import (
    Adapt,
    MergedProduct,
    adapt_products,
    matrix_groups,
    not_adapted,
    replace_products,
)
from reader_edge_export.quantize.sensitive import Candidate, sensitive_matrices
from reader_edge_export.quantize.vocabulary import store_vocabulary, store_vocabulary_fp32, vocabulary_head
from reader_edge_export.sources.weights import experts_of, matrix_of
from reader_edge_runtime.package.manifest import PRECISIONS

OnChoice = Callable[[Set[str]], None]  # gets which matrices int4 leaves in eight bits


def unseen_choice(_: Set[str]) -> None:
    """An `OnChoice` that nobody looks at."""


def num_stored(graph: ir.Graph, precision: str) -> int:
    """How many weights there are to store; those of int4 count twice, since all but experts' are looked at first."""
    values = graph.initializers.values()
    matrices = {matrix.name: matrix for value in values if (matrix := matrix_of(value))}
    num_of_experts = sum(experts.size for value in values if (experts := experts_of(value)))
    return num_of_experts + sum(matrix.size for matrix in matrices.values()) * (1 + PRECISIONS[precision].is_four_bit)


def store_weights(
    editor: GraphEditor,
    precision: str,
    is_portable: bool,
    calibration: Calibration,
    journal: Journal | None = None,
    advance: Advance = unseen,
    on_choice: OnChoice = unseen_choice,
    adapt: Adapt = not_adapted,
) -> None:
    """Store all matrices in `precision`, one of PRECISIONS; is_portable: by operators of the ONNX standard only.
    calibration: of the source, where weights are quantised. journal: of the export, where losses are noted. advance:
    called with the number of weights that were stored. adapt: lets adapters into products.

    The matrices of an int4 model that lose most for the bytes they take are int8. on_choice: gets their names before
    any is stored. Raises ExportError where the source cannot be read, and what `on_choice` does.
    """
    stored = PRECISIONS[precision]
    if stored.num_planes:
        int8 = Int8Products(editor, stored.num_planes, is_portable)
        hadamards = Hadamards(editor)
        gguf, two_plane = GgufProducts(editor, stored.keeps_blocks, int8), TwoPlaneProducts(editor, hadamards)
        products: Int4Products | GgufProducts = gguf
        if stored.is_four_bit:
            candidates = _candidates(editor.graph, calibration, journal, advance)
            in_eight_bits = sensitive_matrices(candidates)
            on_choice(in_eight_bits)
            products = Int4Products(editor, int8, in_eight_bits)

        def multiply(product: MergedProduct) -> ir.Value:
            is_sensitive = product.parts[0].is_sensitive
            output = two_plane.multiply(product) if is_sensitive else products.multiply_stored(product)[0]
            advance(sum(part.size for part in product.parts))
            return output

        replace_products(editor, multiply, calibration, gguf.kind_of, adapt)
        replace_experts(editor, RoundedExpertProducts(editor, stored, calibration, hadamards).multiply, advance)
        store_vocabulary(editor, products, gguf, calibration)  # after them: it makes products of its own
        return
    replace_experts(editor, partial(multiply_plainly, editor), unseen)  # they are read when they are written
    adapt_products(editor, adapt)  # the logit head is none of them yet
    store_vocabulary_fp32(editor)
    if stored.half and is_portable:
        store_in_half(editor)
    elif stored.half:
        convert_to_half(editor, precision)


def _candidates(
    graph: ir.Graph, calibration: Calibration, journal: Journal | None, advance: Advance
) -> list[Candidate]:
    """What an int4 model may have in eight bits, looked at now or by an export that was killed."""
    head, is_tied = vocabulary_head(graph)
    groups = [(group, partial(Candidate.products, group, calibration)) for group in matrix_groups(graph)]
    groups.append(([head], partial(Candidate.vocabulary, head, is_tied, calibration)))
    results = {} if journal is None else journal.results
    candidates = []
    for matrices, look_at in groups:
        name = f"loss of {matrices[0].name}"
        match results.get(name):
            case float(loss):
                candidates.append(Candidate(matrices, loss))
            case _:
                candidates.append(look_at())
                if journal is not None:
                    journal.record(name, candidates[-1].loss)
        advance(candidates[-1].size)
    return candidates

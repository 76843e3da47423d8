"""How weights are stored: fp32, fp16, bf16, int8 or int4. Every form is row independent: a node never changes its
neighbours."""

import functools

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.quantize.half import convert_to_half
from reader_edge_export.quantize.int4 import multiply_int4
from reader_edge_export.quantize.int8 import Int8Products
from reader_edge_export.quantize.linear import replace_products
from reader_edge_export.quantize.vocabulary import store_vocabulary_fp32, store_vocabulary_int8
from reader_edge_runtime.package.manifest import HALF_PRECISIONS


def store_weights(editor: GraphEditor, precision: str, is_portable: bool) -> None:
    """Store all matrices in `precision`, one of PRECISIONS; is_portable: by operators of the ONNX standard only.

    The vocabulary of an int4 model stays int8: it decides between close tokens, so its rounding shows most, and its
    pass over memory is shared by all nodes of a tree, which the int4 kernel's is not.
    """
    if precision in ("int8", "int4"):
        int8 = Int8Products(editor, is_portable)
        store_vocabulary_int8(editor, int8)
        replace_products(editor, int8.multiply if precision == "int8" else functools.partial(multiply_int4, editor))
        return
    store_vocabulary_fp32(editor)
    if precision in HALF_PRECISIONS:
        convert_to_half(editor, precision)

"""How weights are stored: fp32, fp16, bf16, int8 or int4. Every form is row independent: a node never changes its
neighbours."""

from reader_edge_export.calibration import Calibration
from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.quantize.half import convert_to_half
from reader_edge_export.quantize.int4 import Int4Products
from reader_edge_export.quantize.int8 import Int8Products
from reader_edge_export.quantize.linear import replace_products
from reader_edge_export.quantize.vocabulary import store_vocabulary_fp32, store_vocabulary_int8
from reader_edge_runtime.package.manifest import HALF_PRECISIONS, QUANTIZED_PRECISIONS


def store_weights(editor: GraphEditor, precision: str, is_portable: bool, calibration: Calibration) -> None:
    """Store all matrices in `precision`, one of PRECISIONS; is_portable: by operators of the ONNX standard only.
    calibration: of the source, where weights are quantised.

    The vocabulary of an int4 model stays int8: it decides between close tokens, so its rounding shows most.
    """
    if precision in QUANTIZED_PRECISIONS:
        int8 = Int8Products(editor, precision, is_portable)
        layers = Int4Products(editor, int8) if precision == "int4" else int8
        replace_products(editor, layers.multiply, calibration)
        store_vocabulary_int8(editor, int8, calibration)  # after them: it makes products of its own
        return
    store_vocabulary_fp32(editor)
    if precision in HALF_PRECISIONS:
        convert_to_half(editor, precision)

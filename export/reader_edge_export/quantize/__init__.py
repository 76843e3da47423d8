"""How weights are stored: fp32, fp16, bf16, int8 or int4. Every form is row independent: a node never changes its
neighbours."""

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.quantize.half import store_half
from reader_edge_export.quantize.int4 import Int4Products
from reader_edge_export.quantize.int8 import Int8Products
from reader_edge_export.quantize.linear import replace_products
from reader_edge_export.quantize.vocabulary import store_vocabulary_fp32, store_vocabulary_int8

__all__ = ["store_fp32", "store_half", "store_int4", "store_int8"]


def store_fp32(editor: GraphEditor) -> None:
    """Keep all weights as they are."""
    store_vocabulary_fp32(editor)


def store_int8(editor: GraphEditor, is_portable: bool) -> None:
    """All matrices int8 with a scale per output, activations int8 with a scale per row."""
    store_vocabulary_int8(editor, is_portable)
    replace_products(editor, Int8Products(editor, is_portable))


def store_int4(editor: GraphEditor) -> None:
    """Layers int4 in blocks of 32; the vocabulary int8.

    The vocabulary stays int8: it decides between close tokens, so its rounding shows most, and its pass over memory is
    shared by all nodes of a tree, which the int4 kernel's is not.
    """
    store_vocabulary_int8(editor, is_portable=False)
    replace_products(editor, Int4Products(editor))

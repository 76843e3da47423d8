"""reader-edge's exporter: a Hugging Face decoder becomes an ONNX package that takes draft trees.

Importing this package is cheap; PyTorch and its company are imported when `export_model` needs them.
"""

from reader_edge_export.options import ExportOptions, ExportReport
from reader_edge_export.pipeline import export_model

__all__ = ["ExportOptions", "ExportReport", "export_model"]

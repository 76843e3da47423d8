"""reader-edge's exporter: a Hugging Face decoder becomes an ONNX package that takes draft trees.

Importing this package is cheap; PyTorch and its company are imported when `export_model` needs them.
"""

import os

# Before PyTorch loads OpenMP: by default its threads spin while they wait for each other, so that an export beside
# other work on the same cores took twenty times as long. On idle cores there is no difference.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from reader_edge_export.options import ExportOptions, ExportReport
from reader_edge_export.pipeline import export_model
from reader_edge_runtime.machine.processor import num_allowed_cores, num_threads, num_usable_cores

__all__ = ["ExportOptions", "ExportReport", "export_model"]

# OpenMP knows no quota, and takes any number that a user names.
_named = os.environ.get("OMP_NUM_THREADS", "")
if _named.isdecimal() and len(_named) < 10:
    os.environ["OMP_NUM_THREADS"] = str(num_threads(int(_named)))
elif num_usable_cores() < num_allowed_cores():
    os.environ["OMP_NUM_THREADS"] = str(num_usable_cores())

"""ONNX Runtime as the engine of execution. Whatever is imported from here, the installation is looked at first."""

import os

from reader_edge_runtime.execution.onnxruntime.wheel import installed_wheel

INSTALLED_WHEEL = installed_wheel()

# Else importing onnxruntime writes a device id and a store of events to the user's cache folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

"""Runs graphs: the only subpackage that imports onnxruntime."""

"""Packages on ONNX Runtime."""

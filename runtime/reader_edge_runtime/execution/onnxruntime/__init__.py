"""ONNX Runtime as the engine of execution; see wheel.py for how it is imported."""

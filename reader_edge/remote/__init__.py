"""A device before a server: answers of a model elsewhere, drafted for from what is here. No model, no ONNX Runtime."""

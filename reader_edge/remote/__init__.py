"""The client of `run --server`: a model elsewhere answers, drafts come from this device. No model, no ONNX Runtime."""

"""TensorRT as a provider, of ONNX Runtime's wheel or a plugin: an engine of the whole graph for each cache capacity."""

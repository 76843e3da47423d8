"""TensorRT, in ONNX Runtime's wheel or as a plugin: an engine of the whole graph for each capacity of the cache."""

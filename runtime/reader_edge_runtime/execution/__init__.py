"""The wing that runs graphs: the only one that imports onnxruntime."""

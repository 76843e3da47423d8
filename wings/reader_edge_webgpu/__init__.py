"""ONNX Runtime's WebGPU plugin: GPUs by Vulkan, Direct3D 12 and Metal, beside the wheel for CPUs."""

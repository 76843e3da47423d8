"""WebGPU as a provider, by ONNX Runtime's plugin: GPUs through Vulkan, Direct3D 12 and Metal, beside the CPU wheel."""

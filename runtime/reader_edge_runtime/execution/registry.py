"""Which provider runs a package."""

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.device.cuda import cuda_obstacle
from reader_edge_runtime.execution.onnxruntime.device.device_target import DeviceTarget
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.manifest import COMMIT_NAME
from reader_edge_runtime.package.model_package import ModelPackage


def open_target(
    package: ModelPackage, threads: int = 0, provider: str | None = None, uses_native: bool = True
) -> HostTarget | DeviceTarget:
    """Load a package on "cpu" or "cuda".

    None takes CUDA where the package is made for it and nothing that it needs is known to be missing, else the CPU;
    `HostTarget.provider` says which. CUDA asked for by name is CUDA, or a ProviderError that says what is missing.
    uses_native: on the CPU, see `HostTarget.open`.
    """
    if provider == "cuda":
        obstacle = cuda_obstacle()
        if obstacle is not None:
            raise ProviderError(obstacle)
    if provider == "cuda" or (provider is None and is_for_devices(package) and cuda_obstacle() is None):
        return DeviceTarget.open_on(package, "cuda", threads)
    return HostTarget.open(package, threads, uses_native)


def is_for_devices(package: ModelPackage) -> bool:
    """Whether a package has what a device needs: GPU-made operators, and a graph that moves its cache."""
    return COMMIT_NAME in package.manifest.files

"""The providers there are, what each needs, and which of them runs a package."""

from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.drafting.speculators.speculator import Speculator
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.iree.module_files import INDEX_NAME
from reader_edge_runtime.execution.iree.open_iree import open_iree
from reader_edge_runtime.execution.iree.wheel import iree_obstacle
from reader_edge_runtime.execution.onnxruntime.device.cuda import cuda_obstacle, has_cuda
from reader_edge_runtime.execution.onnxruntime.device.device_target import DeviceTarget
from reader_edge_runtime.execution.onnxruntime.host.host_rows_runner import open_on_host
from reader_edge_runtime.execution.onnxruntime.host.host_speculator import HostSpeculator
from reader_edge_runtime.execution.onnxruntime.host.host_vision import HostVision
from reader_edge_runtime.execution.pipeline.open_pipeline import open_pipeline
from reader_edge_runtime.execution.provider import Provider
from reader_edge_runtime.images.image_encoder import VisionTower
from reader_edge_runtime.package.manifest import COMMIT_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.plug_ins import loaded, provider_plug_ins
from reader_edge_runtime.target import Target

# By the names that options and configs have. The first that suits a package and is to be had runs it, unless another
# is named. `cpu` suits each, so those of packages beside this one are loaded where they are named alone.
PROVIDERS: dict[str, Provider] = {
    "cuda": Provider(
        obstacle=cuda_obstacle,
        suits=lambda package: COMMIT_NAME in package.manifest.files,  # its cache is moved by a graph
        open=lambda package, threads, uses_native: DeviceTarget.open_on(package, "cuda", threads),
        is_installed=has_cuda,
    ),
    "cpu": Provider(obstacle=lambda: None, suits=lambda package: True, open=open_on_host),
    "iree": Provider(
        obstacle=iree_obstacle,
        suits=lambda package: INDEX_NAME in package.manifest.files,
        open=lambda package, threads, uses_native: open_iree(package, threads),
    ),
}


def named_provider(name: str) -> Provider:
    """One of `provider_names()`. Raises InstallationError for a plug-in that cannot be loaded."""
    if name in PROVIDERS:
        return PROVIDERS[name]
    provider: Provider = loaded(provider_plug_ins()[name], lambda value: isinstance(value, Provider))
    return provider


def preferred(package: ModelPackage) -> str:
    """The name of the provider that runs a package where nothing is missing and none is requested."""
    return next(name for name, each in PROVIDERS.items() if each.suits(package))


def check_is_whole(package: ModelPackage) -> None:
    """Raise ProviderError for a stage that is opened without its pipeline."""
    stage = package.manifest.stage
    if stage is not None and not package.addresses:
        raise ProviderError(
            f"'{package.folder}' is stage {stage.number} of {stage.num_stages}: give the folder above it, which has "
            "pipeline.json, or serve it with `reader-edge stage`."
        )


def open_target(package: ModelPackage, config: EngineConfig) -> Target:
    """Load a package as a config has it. Raises ProviderError, for a provider requested with what is missing.

    Raises InstallationError for one that cannot be loaded.
    """
    check_is_whole(package)
    if package.addresses:
        return open_pipeline(package, config)
    if package.manifest.images is not None and config.provider not in (None, "cpu"):
        raise ProviderError(
            f"'{package.folder}' sees images, which runs on a CPU alone: leave --provider {config.provider} out, or "
            "export with --no-images."
        )
    if config.provider is None and package.manifest.images is None:
        found = next(each for each in PROVIDERS.values() if each.suits(package) and each.obstacle() is None)
    else:
        found = named_provider(config.provider or "cpu")
        obstacle = found.obstacle() if found.suits(package) else None  # it opens no other package, and says why
        if obstacle is not None:
            raise ProviderError(obstacle)
    return found.open(package, config.threads, config.uses_native)


def open_speculator(package: ModelPackage, target: Target, config: EngineConfig) -> Speculator:
    """Load the speculator of a package that has one, beside its target. Raises ProviderError."""
    return HostSpeculator.open(package, config.threads, config.uses_native and target.is_native)


def open_vision(package: ModelPackage, target: Target, config: EngineConfig) -> VisionTower:
    """Load the graph of images of a package that has one, beside its target. Raises ProviderError."""
    return HostVision.open(package, config.threads, config.uses_native and target.is_native)

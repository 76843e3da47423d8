"""Opens a model over several boxes, and serves a stage of one; both need pyzmq (the extra "pipeline")."""

from collections.abc import Callable
from functools import partial
from importlib import util
from pathlib import Path

from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.errors import ConfigError, InstallationError, PackageError
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.execution.pipeline.following_stage import FollowingStage
from reader_edge_runtime.execution.pipeline.pipeline_target import PipelineTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import is_to_listen_at, read_key
from reader_edge_runtime.package.signature import check_signed


def open_pipeline(package: ModelPackage, config: EngineConfig) -> PipelineTarget:
    """The last stage here, and links to the others. Raises ProviderError, InstallationError or PackageError."""
    _check_installation()
    from reader_edge_runtime.execution.pipeline.ring import Ring

    key = None if package.key_path is None else read_key(package.key_path)
    last = HostStage.open(package, config.threads, config.uses_native)
    target = PipelineTarget(last, Ring(last, package.addresses, key, partial(addresses_now, package, config)))
    target.time_way()
    return target


def addresses_now(package: ModelPackage, config: EngineConfig) -> tuple[str, ...]:
    """Where the stages of an opened pipeline are by now, signed as when it was opened. Raises PackageError."""
    current = ModelPackage.open(package.folder.parent)
    check_signed(current, config.signature_key)
    return current.addresses


def serve_stage(
    package: ModelPackage,
    address: str,
    key_path: Path | None,
    config: EngineConfig,
    on_message: Callable[[str], None],
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Serve one of the stages but the last. key_path: by default of the pipeline.key beside the package, if there.

    Raises PackageError, ConfigError, ProviderError or InstallationError.
    """
    _check_installation()
    from reader_edge_runtime.execution.pipeline.links import Links
    from reader_edge_runtime.execution.pipeline.stage_server import StageServer

    if package.addresses:
        raise PackageError(f"'{package.folder.parent}' holds all stages: give one, as '{package.folder.parent / '1'}'.")
    part = package.manifest.stage
    if part is None:
        raise PackageError(f"'{package.folder}' is no stage: give one of those that `reader-edge split` wrote.")
    if part.is_last:
        raise PackageError(
            f"'{package.folder}' is the last stage, which the client runs: serve the others that "
            "`reader-edge split` wrote."
        )
    if not is_to_listen_at(address):
        raise ConfigError(f"{address!r:.80} is no address to listen at: give tcp://HOST:PORT.")
    key_path = key_path or package.key_path
    links = Links(None if key_path is None else read_key(key_path))
    try:
        stage = FollowingStage(HostStage.open(package, config.threads, config.uses_native))
        server = StageServer(stage, links, address, on_message)
        on_message(f"Stage {part.number} of {part.num_stages} listens at {address}.")
        server.serve(is_stopped)
    finally:
        links.close()


def _check_installation() -> None:
    if util.find_spec("zmq") is None:
        raise InstallationError(
            "A model over several boxes needs pyzmq, which is missing: pip install 'reader-edge[pipeline]'."
        )

"""A package's graph of images on the CPU: what is made of an image becomes rows of features."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

from reader_edge_runtime.arrays import Array, Float32Array
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session, run_bound
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import VISION_GRAPH_NAME

_FEATURES = "image_features"
_LOOK_S = 0.1  # how often a pass is looked after, which may take minutes


class HostVision:
    """A `VisionTower` on ONNX Runtime's CPU provider. width: of a row of features."""

    def __init__(self, session: ort.InferenceSession, width: int) -> None:
        """Raises ProviderError for a graph that gives something else than features."""
        self._session = session
        self._width = width
        self._thread = ThreadPoolExecutor(1, "reader-edge-tower")
        try:
            self._names = {node.name for node in session.get_inputs()}
            outputs = {node.name: (node.type, list(node.shape or ())[1:]) for node in session.get_outputs()}
        except UnicodeDecodeError as error:  # ONNX Runtime loads such a graph and fails to tell of it
            raise ProviderError(f"Names in the graph of images are not UTF-8 ({error}): export again.") from None
        if outputs != {_FEATURES: ("tensor(float)", [width])}:
            raise ProviderError(
                f"The graph of images gives {outputs!s:.80} and not {width} features of each token: export the model "
                "again."
            )

    @classmethod
    def open(cls, package: ModelPackage, threads: int = 0, uses_native: bool = True) -> "HostVision":
        """The graph of a package that sees images. Raises ProviderError or InstallationError."""
        assert package.manifest.images is not None
        library = native_library() if uses_native else None
        session = open_session(package.path(VISION_GRAPH_NAME), threads, library)
        return cls(session, package.manifest.images.row_size)

    def features(self, inputs: Mapping[str, Array], may_run: Callable[[], bool]) -> Float32Array | None:
        if inputs.keys() != self._names:
            odd = ", ".join(sorted(inputs.keys() ^ self._names))
            raise ProviderError(f"The graph of images has other inputs than its rules ({odd:.80}): export again.")
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output(_FEATURES)
        options = ort.RunOptions()
        running = self._thread.submit(run_bound, self._session, binding, options)
        try:
            while not wait([running], _LOOK_S).done:
                if not may_run():
                    options.terminate = True  # which ends it before its next node
        except BaseException:  # an interrupt
            options.terminate = True
            wait([running])
            raise
        if options.terminate:
            return None
        running.result()
        features: Float32Array = binding.get_outputs()[0].numpy()
        return features

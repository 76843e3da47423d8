"""A graph of a package on ONNX Runtime's CPU provider: its session, kernels, weights and caches."""

from collections.abc import Collection, Mapping
from typing import Any, Self

import numpy.typing as npt

from reader_edge_runtime.adapters.adapter_table import AdapterTable
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.graph_contract import check_contract
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache, present_name
from reader_edge_runtime.execution.onnxruntime.host.hybrid_cache import HybridCache
from reader_edge_runtime.execution.onnxruntime.host.needed_memory import check_memory
from reader_edge_runtime.execution.onnxruntime.native import (
    OPERATORS_PROPERTY,
    library_digest,
    native_instructions,
    native_library,
)
from reader_edge_runtime.execution.onnxruntime.session import open_session
from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL, ort
from reader_edge_runtime.machine.process_memory import FilePages, large_blocks_apart, mapped_ranges
from reader_edge_runtime.package.manifest import GRAPH_NAME, WEIGHTS_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage


class CacheBindings:
    """One for each range of slots, with those tensors that passes update bound as input and output at once.

    borrowed: of the tensors, those that the graph has where another one's passes update them; it only reads them.
    """

    def __init__(self, session: ort.InferenceSession, borrowed: Collection[str] = ()) -> None:
        self._session = session
        self._borrowed = borrowed
        self._bindings: dict[tuple[int, int], ort.IOBinding] = {}
        self._bound_cache: tuple[HostCache, int] | None = None

    def of(self, cache: HostCache, first_slot: int, num_slots: int) -> ort.IOBinding:
        """The binding of a range of slots."""
        if self._bound_cache != (cache, cache.num_moves):
            self._bindings.clear()
            self._bound_cache = cache, cache.num_moves
        binding = self._bindings.get((first_slot, num_slots))
        if binding is None:
            binding = self._session.io_binding()
            for name, array in cache.tensors(first_slot, num_slots).items():
                if self._borrowed and name not in self._borrowed:
                    continue
                value = ort.OrtValue.ortvalue_from_numpy(array)
                binding.bind_ortvalue_input(name, value)
                if not self._borrowed:
                    binding.bind_ortvalue_output(present_name(name), value)
            for name, array in cache.read_tensors(first_slot, num_slots).items():
                binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
            self._bindings[first_slot, num_slots] = binding
        return binding


Values = Mapping[str, npt.NDArray[Any]]  # by name, as a graph has them

_MAX_LOOKED_UP = 32  # tokens whose embeddings stay in memory: each is read with 64 KiB around it


class HostGraph:
    """weights: the file that embeddings are read from, as far as the session maps it.

    pass_facts: versions and kernels that the bits of passes depend on. adapters: that passes read, of a package that
    takes any.
    """

    pass_sizes: tuple[int, ...] = ()

    def __init__(
        self,
        session: ort.InferenceSession,
        manifest: Manifest,
        is_native: bool = False,
        weights: FilePages | None = None,
    ) -> None:
        self.session = session
        self.manifest = manifest
        self.is_native = is_native
        self.instructions = native_instructions() if is_native else None
        self.provider = str(session.get_providers()[0])
        self.pass_facts: tuple[str, ...] = INSTALLED_WHEEL, library_digest() if is_native else ""
        self._weights = weights
        self._num_looked_up = 0
        self._bindings = CacheBindings(session)
        self._inputs = {node.name for node in session.get_inputs()}
        self.adapters = AdapterTable(manifest.adapted_products, manifest.adapter_dtype)

    @classmethod
    def open(cls, package: ModelPackage, threads: int = 0, uses_native: bool = True) -> Self:
        """threads: 0 is the usable cores. uses_native: take native kernels where they are installed.

        Raises ProviderError (MemoryShortageError where memory is short) or InstallationError.
        """
        if package.manifest.kv_dtype == "bfloat16":
            raise ProviderError(
                f"'{package.folder}' is in bf16, which ONNX Runtime does not multiply on a CPU: "
                "use --provider cuda, or export with another --precision."
            )
        library = native_library() if uses_native else None
        if library is None and package.manifest.adapted_products:
            raise ProviderError(
                f"'{package.folder}' takes adapters, which native kernels alone add: install or build them, leave "
                "--no-native out, or merge an adapter with `reader-edge export --adapter`."
            )
        if library is not None:  # without it some weights may stay in the file
            check_memory(package)
        weights = package.folder / WEIGHTS_NAME
        with large_blocks_apart():
            others = mapped_ranges(weights)  # of other sessions on the same package, which may end before this one
            session = open_session(package.path(GRAPH_NAME), threads, library)
            pages = FilePages(weights, others)
        check_contract(session, package.manifest)
        is_native = library is not None and OPERATORS_PROPERTY in session.get_modelmeta().custom_metadata_map
        return cls(session, package.manifest, is_native, pages)

    def new_cache(self, num_slots: int, capacity: int) -> HostCache:
        return (HybridCache if self.manifest.has_states else HostCache)(self.manifest, num_slots, capacity)

    def _bind_inputs(self, binding: ort.IOBinding, inputs: Values) -> None:
        """Those that the graph has."""
        inputs = {**inputs, "adapter_table": self.adapters.values}
        for name in self._inputs & inputs.keys():
            binding.bind_cpu_input(name, inputs[name])

    def _forget_embeddings(self, num_looked_up: int) -> None:
        """Keep the rows of a large vocabulary, each read with its surroundings, from adding up to a second copy."""
        self._num_looked_up += num_looked_up
        if self._weights is not None and self._num_looked_up >= _MAX_LOOKED_UP:
            self._weights.forget()
            self._num_looked_up = 0


class PassTensors:
    """What passes of one size read and write beside KV cache and masks, in the same places from pass to pass."""

    def __init__(self, inputs: Values, outputs: Values) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._inputs = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
        self._outputs = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in outputs.items()}

    def bind_to(self, binding: ort.IOBinding) -> None:
        """Let passes of a binding read and write here."""
        for name, value in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            binding.bind_ortvalue_output(name, value)

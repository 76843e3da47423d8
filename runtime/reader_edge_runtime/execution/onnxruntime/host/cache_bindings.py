"""A session's bindings to the tensors of a cache in the process's own memory, kept until that memory moves."""

from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache, present_name
from reader_edge_runtime.execution.onnxruntime.wheel import ort


class CacheBindings:
    """One for each range of slots, with those tensors that passes update bound as input and output at once."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
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
                value = ort.OrtValue.ortvalue_from_numpy(array)
                binding.bind_ortvalue_input(name, value)
                binding.bind_ortvalue_output(present_name(name), value)
            for name, array in cache.read_tensors(first_slot, num_slots).items():
                binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
            self._bindings[first_slot, num_slots] = binding
        return binding

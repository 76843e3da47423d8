"""A trained head on ONNX Runtime: one thread, since its matrices are read sooner than others could begin."""

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.drafting.sources.head_file import NUM_FIRST, NUM_GUESSES, NUM_SECOND, HeadFile, HeadGuesses
from reader_edge_runtime.errors import HeadError, ProviderError
from reader_edge_runtime.execution.onnxruntime.head_graph import head_model
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import CPU, cpu_options
from reader_edge_runtime.execution.onnxruntime.wheel import ort

_SHAPES = {
    "probabilities": (np.float32, (NUM_FIRST,)),
    "numbers": (np.int64, (NUM_FIRST,)),
    "next_probabilities": (np.float32, (NUM_GUESSES, NUM_SECOND)),
    "next_numbers": (np.int64, (NUM_GUESSES, NUM_SECOND)),
}


class HeadSession:
    """A `HeadModel`. uses_native: take the native kernel where it is installed.

    Raises HeadError for a head that does not run on hidden states of this size, InstallationError.
    """

    def __init__(self, head: HeadFile, hidden_size: int, uses_native: bool = True) -> None:
        options = cpu_options(1)
        if uses_native and (library := native_library()) is not None:
            options.register_custom_ops_library(str(library))
        try:
            self._session = ort.InferenceSession(head_model(head), options, providers=[CPU])
            self.guess(np.zeros((1, hidden_size), np.float32), np.zeros(1, np.int64))
        except Exception as error:  # onnxruntime raises a dozen unrelated classes here
            raise HeadError(
                f"The head does not run ({str(error).splitlines()[0]:.200}): train it again with "
                "'reader-edge train-drafter'."
            ) from error

    def guess(self, hidden_states: Float32Array, pending: Int64Array) -> HeadGuesses:
        try:
            said = self._session.run(list(_SHAPES), {"hidden_states": hidden_states, "pending": pending})
        except Exception as error:  # as when loading
            raise ProviderError(f"ONNX Runtime failed in the head ({str(error).splitlines()[0]:.200}).") from error
        for array, (name, (dtype, shape)) in zip(said, _SHAPES.items(), strict=True):
            if array.dtype != dtype or array.shape != (len(pending), *shape):
                raise ProviderError(f"The head's {name} are {array.dtype} {array.shape}: train it again.")
        return HeadGuesses(*said)

"""Whether a package fits into free memory: checked before it is loaded, instead of a process that is killed.

Nothing that would run may be refused, so what counts is certain: the weights of products, which native kernels and ONNX
Runtime pack once, into memory that no file stands behind. The file's own pages give way. Embeddings that are looked up
stay in it, and since the manifest does not say whether the head reads them, too, they never count.
"""

from math import ceil

from reader_edge_runtime.errors import MemoryShortageError
from reader_edge_runtime.machine.process_memory import free_bytes
from reader_edge_runtime.package.manifest import PRECISIONS, WEIGHTS_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage

_MARGIN = 64 << 20  # of the 130 to 270 MB that a package takes beside its weights and KV cache
_NUM_ROWS = 256  # of KV cache that any answer needs
_ROUNDED_BYTES = 1 + 4 / 64  # of a number of an embedding: a byte, and a scale for 64 of them
_FOUR_BIT_BYTES = 0.63  # of a parameter in a package of four bits, whose embeddings have more


def check_memory(package: ModelPackage) -> None:
    """Raise MemoryShortageError where a package cannot fit on this machine; where the system does not tell, it may."""
    free, needed = free_bytes(), needed_bytes(package.manifest)
    if free is not None and needed > free:
        raise MemoryShortageError(
            f"'{package.folder}' needs at least {ceil(needed / 1e8) / 10} GB of memory and {free // 10**8 / 10} GB are "
            f"free: end other programs, or take {_fitting(free - _MARGIN)}."
        )


def needed_bytes(manifest: Manifest) -> int:
    """Memory that a package takes at least on the CPU."""
    num_rows = min(_NUM_ROWS, manifest.max_context)
    kept = num_rows * manifest.kv_row_bytes + manifest.state_bytes
    return product_bytes(manifest) + kept + _MARGIN


def product_bytes(manifest: Manifest) -> int:
    """Of the weights of products at least, all of which every pass reads, but for experts that it does not choose."""
    weights = manifest.files.get(WEIGHTS_NAME)
    num_bytes = 0 if weights is None else weights.num_bytes
    if manifest.hidden_size is None:
        num_looked_up = num_bytes / 2
    else:
        precision = PRECISIONS[manifest.precision]
        number_bytes = _ROUNDED_BYTES if precision.num_planes else precision.weight_bytes
        num_looked_up = manifest.vocab_size * manifest.hidden_size * number_bytes
    return max(0, num_bytes - int(num_looked_up))


def _fitting(num_bytes: int) -> str:
    """A model that so many bytes hold."""
    millions = int(num_bytes / _FOUR_BIT_BYTES / 1e6)
    if millions < 100:
        return "a smaller model"
    size = f"{millions // 1000} billion" if millions >= 1000 else f"{millions // 100 * 100} million"
    return f"a model of about {size} parameters at four bits"

"""A trained head as its file holds it: weights in eight bits, a scale for each column."""

import numpy as np
import numpy.typing as npt

from reader_edge_export.heads.head_module import HeadModule
from reader_edge_runtime.arrays import Array, Float32Array, Int32Array
from reader_edge_runtime.drafting.sources.head_file import HeadFile


def rounded_head(module: HeadModule, ids: Int32Array) -> HeadFile:
    """ids: int32 (K,), the tokens that the module's numbers stand for."""
    values = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    second, split = values["second.weight"], module.sizes.inner  # whose columns are what the first made, and the guess
    weights = {
        **{name: values[f"{name}.weight"] for name in ("first", "first_out", "second_out", "vocabulary")},
        "second_known": second[:, :split],
        "second_guessed": second[:, split:],
    }
    matrices: dict[str, Array] = {
        "mean": values["mean"],
        "gain": 1 / values["scale"],
        "embedding": values["embedding"].astype(np.float16),
        "second_known.bias": values["second.bias"],
        **{name: value for name, value in values.items() if name.endswith(".bias") and name != "second.bias"},
    }
    for name, weight in weights.items():
        matrices[f"{name}.weight"], matrices[f"{name}.scales"] = _rounded(weight)
    return HeadFile(module.sizes, ids, matrices)


def _rounded(weight: Float32Array) -> tuple[npt.NDArray[np.int8], Float32Array]:
    """A weight (O, I) as int8 (I, O), and the scales (O,)."""
    scales = np.maximum(np.abs(weight).max(1), 1e-12) / 127
    return np.ascontiguousarray(np.rint(weight / scales[:, None]).astype(np.int8).T), scales

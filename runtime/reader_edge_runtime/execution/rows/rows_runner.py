"""The seam for engines that run a graph whose new rows of the KV cache are results."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.execution.inputs import Inputs
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import KvArray
from reader_edge_runtime.package.manifest import Manifest


class RowsResult(NamedTuple):
    """What a pass over one tree gives: R logit rows, N nodes.

    logits: float32 (R, V). hidden_states: float32 (R, E), None where none are reported. new_rows: by the names of the
    past, float32 (H, N, D). All of it is valid until the runner's next pass.
    """

    logits: Float32Array
    hidden_states: Float32Array | None
    new_rows: Mapping[str, Float32Array]


class RowsRunner(Protocol):
    """Runs the graph over one tree at a time.

    provider, pass_sizes, pass_facts: as a `reader_edge_runtime.target.Target` has them.
    """

    manifest: Manifest
    provider: str
    pass_sizes: tuple[int, ...]
    pass_facts: tuple[str, ...]

    def width_for(self, num_nodes: int) -> int:
        """Nodes of the pass that so many begin with: it is padded to more, or the others come in later ones."""
        ...

    def bound(self, past: Mapping[str, KvArray]) -> Any:
        """A slot's cache as passes take it, without a copy: by name (1, H, S, D), each beginning with a page."""
        ...

    def run(self, inputs: Inputs, bound: Any) -> RowsResult:
        """One pass of `width_for` nodes and no more rows; integers are int32. Raises ProviderError."""
        ...

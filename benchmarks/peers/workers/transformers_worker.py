"""transformers on PyTorch: generate(), with prompt lookup when drafted; passes are bare forward calls."""

import time
from importlib.metadata import version
from typing import Any

import torch
from protocol import serve, shared_length
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.generation.streamers import BaseStreamer


class Clock(BaseStreamer):
    """Notes when tokens arrive; the first call hands over the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        self.times.append(time.perf_counter())


class TransformersWorker:
    def load(self, model: str, threads: int, is_drafted: bool) -> dict[str, Any]:
        torch.set_num_threads(threads)
        path, _, dtype = model.rpartition(":")
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
        self.cache, self.past = DynamicCache(config=self.model.config), list[int]()  # of passes
        self.options = {"prompt_lookup_num_tokens": 10} if is_drafted else {}  # as in the project's documentation
        return {"versions": {name: version(name) for name in ("transformers", "torch")}}

    @torch.inference_mode()
    def generate(self, prompt: list[int], num_tokens: int, end_token_ids: list[int]) -> dict[str, Any]:
        clock = Clock()
        input_ids = torch.tensor([prompt])
        start = time.perf_counter()
        output = self.model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=end_token_ids or None,
            pad_token_id=0,
            streamer=clock,
            **self.options,
        )
        first, last = clock.times[1], clock.times[-1]
        return {"token_ids": output[0, len(prompt) :].tolist(), "first_s": first - start, "rest_s": last - first}

    @torch.inference_mode()
    def passes(self, prompt: list[int], widths: list[int], rounds: int) -> dict[str, Any]:
        past = shared_length(self.past, prompt)
        self.cache.crop(past)
        if past < len(prompt):
            self.model(torch.tensor([prompt[past:]]), past_key_values=self.cache, logits_to_keep=1)
        self.past = prompt
        self._pass_seconds(prompt, widths[0])
        seconds: dict[int, list[float]] = {width: [] for width in widths}
        for _ in range(rounds):
            for width in widths:
                seconds[width].append(self._pass_seconds(prompt, width))
        return {"seconds": seconds}

    def _pass_seconds(self, prompt: list[int], width: int) -> float:
        input_ids = torch.tensor([prompt[:width]])
        start = time.perf_counter()
        self.model(input_ids, past_key_values=self.cache)
        elapsed = time.perf_counter() - start
        self.cache.crop(-width)
        return elapsed


if __name__ == "__main__":
    serve(TransformersWorker())

"""llama.cpp through llama-cpp-python: Llama.generate for decoding; passes are bare llama_decode calls."""

import ctypes
import time
from importlib.metadata import version
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from protocol import serve, shared_length

CONTEXT = 4608  # 4096 prompt tokens and what is decoded behind them
Q8_0 = 8  # ggml's number of the type
DRAFT_TOKENS = 2  # what llama-cpp-python's README advises without a GPU


class LlamaCppWorker:
    def load(self, model: str, threads: int, is_drafted: bool) -> dict[str, Any]:
        file, _, variant = model.partition(":")
        # Its KV cache is f16; rounded, it takes llama.cpp's other form of attention.
        kv = {"type_k": Q8_0, "type_v": Q8_0, "flash_attn": True} if variant == "kv-q8_0" else {}
        self.llama = llama_cpp.Llama(
            file,
            n_ctx=CONTEXT,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
            logits_all=is_drafted,  # else 0.3.x has room for the scores of a batch only, and a longer prompt fails
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=DRAFT_TOKENS) if is_drafted else None,
            **kv,
        )
        system = llama_cpp.llama_print_system_info().decode()
        return {"versions": {"llama-cpp-python": version("llama-cpp-python")}, "system": system}

    def generate(self, prompt: list[int], num_tokens: int, end_token_ids: list[int]) -> dict[str, Any]:
        start = time.perf_counter()
        tokens = self.llama.generate(prompt, temp=0.0)
        token_ids = [next(tokens)]
        first = time.perf_counter()
        while len(token_ids) < num_tokens and token_ids[-1] not in end_token_ids:
            token_ids.append(next(tokens))
        rest_s = time.perf_counter() - first
        return {"token_ids": token_ids, "first_s": first - start, "rest_s": rest_s}

    def passes(self, prompt: list[int], widths: list[int], rounds: int) -> dict[str, Any]:
        past = shared_length(self.llama.eval_tokens, prompt)
        self.llama.n_tokens = past
        self.llama.eval(prompt[past:])
        self.llama._requires_eval = True  # the logits will be those of passes
        memory = llama_cpp.llama_get_memory(self.llama.ctx)
        batch = llama_cpp.llama_batch_init(max(widths), 0, 1)
        seconds: dict[int, list[float]] = {width: [] for width in widths}
        for round_number in range(-1, rounds):  # round -1 warms up
            for width in widths if round_number >= 0 else widths[:1]:
                start = time.perf_counter()
                self._decode(batch, prompt[:width], len(prompt))
                elapsed = time.perf_counter() - start
                llama_cpp.llama_memory_seq_rm(memory, 0, len(prompt), -1)
                if round_number >= 0:
                    seconds[width].append(elapsed)
        llama_cpp.llama_batch_free(batch)
        return {"seconds": seconds}

    def _decode(self, batch: Any, token_ids: list[int], past: int) -> None:
        batch.n_tokens = len(token_ids)
        for i, token_id in enumerate(token_ids):
            batch.token[i] = token_id
            batch.pos[i] = past + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = True
        status = llama_cpp.llama_decode(self.llama.ctx, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        llama_cpp.llama_synchronize(self.llama.ctx)
        ctypes.cast(llama_cpp.llama_get_logits(self.llama.ctx), ctypes.POINTER(ctypes.c_float))


if __name__ == "__main__":
    serve(LlamaCppWorker())

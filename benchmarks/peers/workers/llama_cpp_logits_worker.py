"""llama.cpp through llama-cpp-python: the logits of all positions of a text."""

from typing import Any

import llama_cpp
import numpy as np
from protocol import serve

F32, Q8_0 = 0, 8  # ggml's numbers of the types


class LlamaCppLogitsWorker:
    def load(self, model: str, threads: int, max_length: int) -> dict[str, Any]:
        """model: a GGUF file, and ":kv-q8_0" behind it for a rounded KV cache."""
        model, _, cache = model.partition(":")
        weights = llama_cpp.llama_model_default_params()
        weights.use_extra_bufts = False  # weights as they lie in the file: llama.cpp's AMX kernels crash in some VMs
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = context.n_batch = max_length
        context.n_threads = context.n_threads_batch = threads
        if model.endswith("f32.gguf"):  # a reference's keys and values are not rounded either
            context.type_k = context.type_v = F32
            context.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        elif cache == "kv-q8_0":
            context.type_k = context.type_v = Q8_0
            context.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED  # it asks for that
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), weights)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        self.batch = llama_cpp.llama_batch_init(max_length, 0, 1)
        return {}

    def logits(self, token_ids: list[int], out: str) -> dict[str, Any]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.batch.n_tokens = len(token_ids)
        for i, token_id in enumerate(token_ids):
            self.batch.token[i] = token_id
            self.batch.pos[i] = i
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = 0
            self.batch.logits[i] = True
        status = llama_cpp.llama_decode(self.context, self.batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        shape = (len(token_ids), llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model)))
        np.save(out, np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), shape))
        return {}


if __name__ == "__main__":
    serve(LlamaCppLogitsWorker())

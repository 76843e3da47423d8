"""llama.cpp through llama-cpp-python: the logits of all positions of a text."""

from typing import Any

import llama_cpp
import numpy as np
from protocol import serve

F32 = 0  # ggml's number of the type


class LlamaCppLogitsWorker:
    def load(self, model: str, threads: int, max_length: int) -> dict[str, Any]:
        is_full = model.endswith("f32.gguf")  # the reference's keys and values are not rounded either
        cache = {"type_k": F32, "type_v": F32} if is_full else {}
        sizes = {"n_ctx": max_length, "n_batch": max_length}
        self.llama = llama_cpp.Llama(model, n_threads=threads, n_threads_batch=threads, verbose=False, **sizes, **cache)
        self.batch = llama_cpp.llama_batch_init(max_length, 0, 1)
        return {}

    def logits(self, token_ids: list[int], out: str) -> dict[str, Any]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.llama.ctx), True)
        self.batch.n_tokens = len(token_ids)
        for i, token_id in enumerate(token_ids):
            self.batch.token[i] = token_id
            self.batch.pos[i] = i
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = 0
            self.batch.logits[i] = True
        status = llama_cpp.llama_decode(self.llama.ctx, self.batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        shape = (len(token_ids), self.llama.n_vocab())
        np.save(out, np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.llama.ctx), shape))
        return {}


if __name__ == "__main__":
    serve(LlamaCppLogitsWorker())

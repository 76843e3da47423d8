"""Small models of every architecture, trained here on the sources of Python's standard library, and kept.

Random models say little of rounding: their inputs have no structure that one weight could make up for another's error
by, nor any that a coarse step would hide. Two minutes of training on one core give both.
"""

import hashlib
import json
import shutil
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import cos, pi
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.measuring import say
from tests.export.gguf_models import build_source
from tests.tiny_models import SPECIAL_TOKENS

_NUM_HELD_OUT, NUM_TOKENS = 24, 256  # files to measure on, and tokens of each from its beginning
_NUM_CALIBRATION, _NUM_CHARACTERS = 24, 2000  # files to calibrate on, and characters of each
_VOCAB_SIZE, _END = 2048, SPECIAL_TOKENS.index("<|eos|>")
_STEPS, _WARM_UP, _ROWS, _RATE = 450, 30, 4, 2e-3
_SIZES: dict[str, Any] = {
    "vocab_size": _VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.02,
}
_GEMMA = {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 64, "layer_types": None}
_OWN: dict[str, dict[str, Any]] = {
    "mistral": {"head_dim": 64},
    "qwen3": {"head_dim": 64},
    "gemma": {"head_dim": 64},
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 50.0},
    "gemma3_text": _GEMMA,
    "phi": {"intermediate_size": 1024},
    "phi3": {"sliding_window": None, "partial_rotary_factor": 1.0},  # llama.cpp leaves the tiny model's out
    "gpt2": {"vocab_size": _VOCAB_SIZE, "n_embd": 256, "n_layer": 4, "n_positions": 512},
    "granite": {"attention_multiplier": 1 / 64, "embedding_multiplier": 12.0, "residual_multiplier": 0.22},
}


@dataclass(frozen=True)
class Texts:
    """Sources of Python's standard library, in an order that their names draw."""

    folder: Path

    @classmethod
    def of_this_python(cls) -> "Texts":
        return cls(Path(sysconfig.get_path("stdlib")))

    @cached_property
    def _all(self) -> list[str]:
        paths = [path.relative_to(self.folder) for path in self.folder.rglob("*.py")]
        left_out = {"site-packages", "test", "tests", "idlelib", "lib2to3"}
        chosen = [path for path in paths if left_out.isdisjoint(path.parts)]
        chosen.sort(key=lambda path: hashlib.sha256(path.as_posix().encode()).digest())
        texts = [(self.folder / path).read_text(encoding="utf-8", errors="replace") for path in chosen]
        return [text for text in texts if len(text) > _NUM_CHARACTERS]

    @property
    def held_out(self) -> list[str]:
        return self._all[:_NUM_HELD_OUT]

    @property
    def calibration(self) -> str:
        """As many characters of each file as the export takes for a document."""
        return "".join(text[:_NUM_CHARACTERS] for text in self._all[_NUM_HELD_OUT : _NUM_HELD_OUT + _NUM_CALIBRATION])

    @property
    def training(self) -> list[str]:
        return self._all[_NUM_HELD_OUT + _NUM_CALIBRATION :]


class TrainedModels:
    """Models in Hugging Face format under a folder, each trained when it is first asked for."""

    def __init__(self, folder: Path, texts: Texts) -> None:
        self._texts = texts
        recipe = [_SIZES, _OWN, _STEPS, _WARM_UP, _ROWS, _RATE, len(texts.training), len(texts.training[0])]
        self._folder = folder / hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:12]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        path = self._folder / "tokenizer.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            trained = ByteLevelBPETokenizer()
            trained.train_from_iterator(self._texts.training, _VOCAB_SIZE, special_tokens=SPECIAL_TOKENS)
            trained.save(str(path))
        return Tokenizer.from_file(str(path))

    @cached_property
    def held_out(self) -> list[list[int]]:
        """Token ids that no model has seen."""
        return [encoding.ids[:NUM_TOKENS] for encoding in self.tokenizer.encode_batch(self._texts.held_out)]

    @property
    def calibration_text(self) -> str:
        """Of the same kind, which no model has seen either."""
        return self._texts.calibration

    @cached_property
    def _token_ids(self) -> torch.Tensor:
        encodings = self.tokenizer.encode_batch(self._texts.training)
        return torch.cat([torch.tensor([*encoding.ids, _END]) for encoding in encodings])

    def load(self, model_type: str) -> tuple[PreTrainedModel, Path]:
        """A trained model in fp32, and its folder; half-trained ones never take its name."""
        folder = self._folder / model_type
        if not folder.exists():
            partial = folder.with_name(f"{model_type}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            model = build_source(
                model_type,
                partial,
                **(_OWN.get(model_type, {}) if model_type == "gpt2" else _SIZES | _OWN.get(model_type, {})),
            )
            self._train(model)
            model.save_pretrained(partial)
            shutil.copy(self._folder / "tokenizer.json", partial)
            partial.rename(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        return model.eval(), folder

    def _train(self, model: PreTrainedModel) -> None:
        torch.manual_seed(0)
        matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
        recent = 0.0
        for step, rows in enumerate(self._batches()):
            decay = (1 + cos(pi * step / _STEPS)) / 2
            for group in optimizer.param_groups:
                group["lr"] = _RATE * min(1.0, (step + 1) / _WARM_UP, 0.05 + 0.95 * decay)
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(rows, labels=rows, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            recent += (loss.item() - recent) / min(step + 1, 50)
        say(f"{model.config.model_type}: trained, loss {recent:.2f} nats")

    def _batches(self) -> Iterator[torch.Tensor]:
        drawn = torch.Generator().manual_seed(0)
        for _ in range(_STEPS):
            begins = torch.randint(len(self._token_ids) - NUM_TOKENS, (_ROWS,), generator=drawn).tolist()
            yield torch.stack([self._token_ids[begin : begin + NUM_TOKENS] for begin in begins])


def _sizes(model_type: str) -> dict[str, Any]:
    own = _OWN.get(model_type, {})
    return own if model_type == "gpt2" else _SIZES | own

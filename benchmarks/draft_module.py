"""A small draft model in PyTorch: a llama whose vocabulary begins as its target's, and which its target may steer."""

import shutil
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.draft_texts import DraftTexts
from reader_edge_runtime.package.manifest import TOKENIZER_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage

Tensor = torch.Tensor

FEW = 4  # guesses that count
_WIDTH, _INNER, _LAYERS, _HEADS = 192, 512, 2, 3
_SPREAD = 0.08  # of the vocabulary's numbers, at first
_PLACES_AT_ONCE = 512


class DraftModule(nn.Module):
    """steering: from the target's hidden state to what is added to a token's embedding (after arXiv 2511.09844)."""

    def __init__(self, draft: LlamaForCausalLM, steering: "Steering | None" = None) -> None:
        super().__init__()
        self.draft = draft
        self.steering = steering

    @classmethod
    def begun(cls, manifest: Manifest, rows: Tensor) -> "DraftModule":
        """An untrained one. rows: float32 (V, E), the target's logit head, cut to the directions that matter most."""
        config = LlamaConfig(
            vocab_size=manifest.vocab_size,
            hidden_size=_WIDTH,
            intermediate_size=_INNER,
            num_hidden_layers=_LAYERS,
            num_attention_heads=_HEADS,
            max_position_embeddings=manifest.max_context,
            tie_word_embeddings=True,
            bos_token_id=manifest.bos_token_id,
            eos_token_id=list(manifest.eos_token_ids),
        )
        torch.manual_seed(0)
        module = cls(LlamaForCausalLM(config))
        centred = rows - rows.mean(0)
        directions = torch.linalg.eigh(centred.T @ centred).eigenvectors
        kept = centred @ directions[:, -_WIDTH:].flip(1)
        with torch.no_grad():
            module.vocabulary[:, : kept.shape[1]] = _SPREAD * kept / kept.std()
        return module

    @property
    def vocabulary(self) -> Tensor:
        """Embedding and logit head, (V, width)."""
        rows: Tensor = self.draft.model.embed_tokens.weight
        return rows

    def forward(self, texts: DraftTexts, depths: Tensor) -> Tensor:
        """What goes into the logit head at the places of texts, (P, width).

        depths: int64 (P,), how many tokens each place is behind the state that steers there.
        """
        embedded = self.draft.model.embed_tokens(texts.token_ids)
        if self.steering is not None:
            known = texts.states[torch.arange(len(depths)) + 1 - depths]
            added = embedded.new_zeros(embedded.shape).flatten(0, 1)
            embedded = embedded + added.index_copy(0, texts.places, self.steering(known)).view_as(embedded)
        said = self.draft.model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        at_places: Tensor = said.flatten(0, 1)[texts.places]
        return at_places

    @torch.no_grad()
    def guesses(self, texts: DraftTexts, depths: Tensor) -> Tensor:
        """The likeliest tokens after each place, int64 (P, FEW), best first."""
        parts = self(texts, depths).split(_PLACES_AT_ONCE)
        return torch.cat([(part @ self.vocabulary.T).topk(FEW).indices for part in parts])

    def write(self, folder: Path, package: ModelPackage) -> None:
        """Hugging Face's format, with the target's tokenizer. A draft model is given tokens, so no chat template."""
        self.draft.save_pretrained(folder)
        shutil.copy(package.path(TOKENIZER_NAME), folder)


class Steering(nn.Module):
    """A linear map that adds nothing at first.

    states: float32 (N, E), of the target, some of those that are brought to mean 0 and a length of about 1.
    """

    def __init__(self, states: Tensor, width: int) -> None:
        super().__init__()
        self.mean = nn.Buffer(states.mean(0))
        self.scale = nn.Buffer((states.std(0) + 1e-3) * states.shape[1] ** 0.5)
        self.map = nn.Linear(states.shape[1], width, bias=False)
        nn.init.zeros_(self.map.weight)

    def forward(self, states: Tensor) -> Tensor:
        added: Tensor = self.map((states - self.mean) / self.scale)
        return added

"""A GGUF file as a source: its header is read and checked before anything heavy is imported."""

import math
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.sources.architectures import MIN_CONTEXT, check_architecture, max_context_of
from reader_edge_export.sources.generation import own_sampling
from reader_edge_export.sources.gguf.config import LAST, RANK, config_of, pooling_type_of
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.layer_sizes import CLASSIFIER, unread_tensors
from reader_edge_export.sources.gguf.ollama import in_words_of_llama_cpp
from reader_edge_export.sources.gguf.tensor_kinds import is_dequantizable
from reader_edge_export.sources.gguf.tokenizer import build_tokenizer
from reader_edge_export.sources.gguf.vocabulary import GgufVocabulary, chat_template_of, vocabulary_of
from reader_edge_export.sources.source import Source
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.package.manifest import sha256_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from reader_edge_export.sources.source_model import SourceModel


# Which llama.cpp's converter writes of generation_config.json, whatever that has for do_sample.
_SAMPLING_KEYS = {
    **{"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"},
    "repetition_penalty": "penalty_repeat",
}
_SAME_ROW = 0.9  # cosine of a row, in whatever types it is stored twice; other rows have a third of that
_SAMPLING = "general.sampling."
# Switches of what llama.cpp does besides, all off at 0, and what counts only beside them.
_SWITCHES = {"mirostat": ("mirostat_tau", "mirostat_eta"), "xtc_probability": ("xtc_threshold",)}
_WHOLE_CONTEXT = -1  # of penalty_last_n, as it is here
_MAX_KEYS, _MAX_KEY_CHARACTERS = 16, 40  # which are shown of a file from outside


@dataclass(frozen=True, slots=True)
class GgufSource(Source):
    """A file whose header describes a supported model, with a known tokenizer, in types that have values."""

    file: GgufFile
    vocabulary: GgufVocabulary
    chat_template: str | dict[str, str] | None

    @classmethod
    def of(cls, file: GgufFile, max_context: int | None) -> "GgufSource":
        """Check what a file's header says. Raises ExportError (or a child) or TokenizerError."""
        file = in_words_of_llama_cpp(file)
        config = config_of(file)
        check_architecture(config)
        for kind in {tensor.kind for tensor in file.tensors.values()}:
            if not is_dequantizable(kind):
                raise file.error(
                    f"has weights of the type {kind.name}, whose values are not known", "give a file of other types"
                )
        if (own_context := config["max_position_embeddings"]) < MIN_CONTEXT:
            raise file.error(f"has a context of {own_context} tokens", f"{MIN_CONTEXT} are the least that are exported")
        context = max_context_of(config, max_context)
        vocabulary, template = vocabulary_of(file), chat_template_of(file)
        if len(vocabulary.tokens) > config["vocab_size"]:
            raise file.error(f"has {len(vocabulary.tokens)} tokens, but embeddings of {config['vocab_size']}")
        return cls(str(file.path), config, context, file.weight_types(), file, vocabulary, template)

    def sampling(self) -> dict[str, float]:
        given: dict[str, Any] = {}
        for name, key in _SAMPLING_KEYS.items():
            value = self.file.metadata.get(_SAMPLING + key)
            given[name] = float(str(np.float32(value))) if isinstance(value, float) else value  # 0.95, as it was meant
        is_drawn = any(given[name] is not None for name in given if name != "repetition_penalty")
        return own_sampling(given | {"do_sample": is_drawn}, f"'{self.file.path}', in general.sampling,")

    def other_choices(self) -> tuple[str, ...]:
        """By the keys of the file, also those that llama.cpp does not know."""
        metadata = self.file.metadata
        given = {key.removeprefix(_SAMPLING): metadata[key] for key in metadata if key.startswith(_SAMPLING)}
        idle = set(_SAMPLING_KEYS.values())
        for switch, others in _SWITCHES.items():
            if given.get(switch, 0) == 0:
                idle |= {switch, *others}
        if given.get("penalty_repeat", 1) == 1 or given.get("penalty_last_n") == _WHOLE_CONTEXT:
            idle.add("penalty_last_n")
        active = [repr(key[:_MAX_KEY_CHARACTERS])[1:-1] for key in given if key not in idle]
        return tuple(_SAMPLING + key for key in active[:_MAX_KEYS])

    def own_pooling(self) -> str:
        kind = pooling_type_of(self.file)
        return "rank" if kind == RANK else "last" if kind == LAST else ""

    @property
    def files(self) -> list[Path]:
        return self.file.paths

    @property
    def left_out(self) -> tuple[str, ...]:
        has_later = unread_tensors(self.file, self.config["num_hidden_layers"])
        return ("layers that guess later tokens",) if has_later else ()

    def fingerprint(self) -> str:
        of_parts = [sha256_of(path) for path in self.file.paths]
        self.file.check_unchanged()
        return of_parts[0] if len(of_parts) == 1 else sha256("".join(of_parts).encode()).hexdigest()

    def open_model(self) -> "SourceModel":
        from reader_edge_export.sources.gguf.weights import open_weights

        if CLASSIFIER in self.file.tensors:
            self._check_classifier()
        return open_weights(self.file, self.config)

    def _check_classifier(self) -> None:
        """Raise GgufError where a reranker's rows of "yes" and "no" are not those of the file's logit head.

        llama.cpp's converter writes them in place of a head that is not the input embedding.
        """
        tensors, tokens = self.file.tensors, self.vocabulary.tokens
        head = tensors.get("output.weight") or tensors["token_embd.weight"]
        rows = self.file.values(CLASSIFIER)
        own = np.empty((1, head.shape[1]), np.float32)
        for answer, row in zip(("yes", "no"), rows, strict=False):
            if answer in tokens and row.shape == own[0].shape:
                self.file.read_into(own, head, tokens.index(answer))
                if own[0] @ row > _SAME_ROW * np.linalg.norm(own) * np.linalg.norm(row):
                    continue
            raise self.file.error(
                f"lacks the logit head that its row of {answer!r} is of", "give the model in Hugging Face format"
            )

    @property
    def is_kept(self) -> bool:
        num_values = self._matrix_values()
        return 2 * sum(num_values[name] for name in num_values if name in BLOCK_TYPES) > num_values.total()

    def check_keepable(self) -> None:
        if not any(name in BLOCK_TYPES for name in self._matrix_values()):
            raise ConfigError(
                f"precision 'keep' takes {', '.join(BLOCK_TYPES)} as they are, of which '{self.short_name}' has none "
                f"({', '.join(self.weight_types)}): use 'int8', 'int4' or another."
            )

    def _matrix_values(self) -> Counter[str]:
        """How many values of matrices there are, by the names of their types."""
        matrices = [tensor for tensor in self.file.tensors.values() if len(tensor.shape) > 1]
        return sum((Counter({tensor.kind.name: math.prod(tensor.shape)}) for tensor in matrices), Counter())

    def load_tokenizer(self, vocab_size: int) -> "PreTrainedTokenizerFast":
        from transformers import PreTrainedTokenizerFast

        from reader_edge_export.sources.tokenizer import check_ids

        vocabulary = self.vocabulary
        ids = {"bos_token": vocabulary.bos_id, "eos_token": vocabulary.eos_id, "unk_token": vocabulary.unknown_id}
        names = {name: vocabulary.tokens[token_id] for name, token_id in ids.items() if token_id is not None}
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=build_tokenizer(vocabulary), **names)
        tokenizer.chat_template = self.chat_template
        given = ((i, token) for i, token in enumerate(vocabulary.tokens) if not vocabulary.is_filler(i))
        check_ids(tokenizer.backend_tokenizer, given, self.file.path)
        return tokenizer

    def special_token_ids(self, tokenizer: "PreTrainedTokenizerFast") -> tuple[tuple[int, ...], int | None]:
        return self.vocabulary.end_ids, self.vocabulary.bos_id

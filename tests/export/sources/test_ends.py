"""Answers end at the same tokens from a model's folder and from a GGUF file of it, in the light of its vocabulary."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from reader_edge_export.sources.folder.folder_tokenizer import load_tokenizer
from reader_edge_export.sources.folder.hugging_face import HuggingFaceSource
from tests.export.sources.gguf.written_vocabulary import read
from tests.family_tokenizers import FAMILIES, MORE_FAMILIES, family_tokenizer
from tests.gguf_files import byte_level


class Ends(NamedTuple):
    """special, plain: added tokens. generation: ends by generation_config.json. own: the tokenizer's."""

    special: tuple[str, ...]
    generation: tuple[str, ...]
    own: str
    expected: set[str]
    plain: tuple[str, ...] = ()


_HARMONY = ("<|startoftext|>", "<|endoftext|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>")
_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_LLAMA3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")
_PHI3 = ("<|endoftext|>", "<|assistant|>", "<|placeholder1|>", "<|system|>", "<|end|>", "<|user|>")
_BOTH = {"<|endoftext|>", "<|im_end|>"}
MODELS = {  # as their makers' files have it
    "gpt-oss": Ends(
        (*_HARMONY, "<|return|>", "<|call|>"),
        ("<|return|>", "<|endoftext|>", "<|call|>"),
        "<|return|>",
        {"<|return|>", "<|endoftext|>", "<|call|>"},
    ),
    "solar-open": Ends(
        (*_HARMONY, "<|calls|>", "<|flush|>"), (), "<|flush|>", {"<|endoftext|>", "<|calls|>", "<|flush|>"}
    ),
    "qwen base": Ends(_QWEN, ("<|endoftext|>",), "<|endoftext|>", _BOTH),
    "qwen chat": Ends(_QWEN, ("<|im_end|>", "<|endoftext|>"), "<|im_end|>", _BOTH, ("<|fim_pad|>", "<|file_sep|>")),
    "a chat fine-tune": Ends(
        (*_LLAMA3, "<|im_start|>", "<|im_end|>"),
        ("<|end_of_text|>",),
        "<|im_end|>",
        {"<|end_of_text|>", "<|eom_id|>", "<|eot_id|>", "<|im_end|>"},
    ),
    "a fine-tune with an end of its own": Ends(("</s>", "<|over|>"), ("</s>",), "<|over|>", {"</s>", "<|over|>"}),
    "llama 3": Ends(_LLAMA3, _LLAMA3[1:], "<|eot_id|>", set(_LLAMA3[1:])),
    "gemma 3": Ends(
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        ("<eos>", "<end_of_turn>"),
        "<eos>",
        {"<eos>", "<end_of_turn>"},
        ("<s>", "</s>", "<h1>"),
    ),
    "gemma 4": Ends(
        ("<bos>", "<eos>", "<|turn>", "<turn|>", "<|tool_response>", "</s>"),
        ("<eos>", "<turn|>", "<|tool_response>"),
        "<eos>",
        {"<eos>", "<turn|>", "<|tool_response>"},
    ),
    "phi-3": Ends(
        _PHI3,
        ("<|endoftext|>", "<|assistant|>", "<|end|>"),
        "<|endoftext|>",
        {"<|endoftext|>", "<|assistant|>", "<|end|>"},
        ("</s>",),
    ),
    "phi-4-mini": Ends(
        ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"),
        ("<|end|>", "<|endoftext|>"),
        "<|endoftext|>",
        {"<|endoftext|>", "<|end|>"},
    ),
    "gpt-2": Ends(("<|endoftext|>",), (), "<|endoftext|>", {"<|endoftext|>"}),
    "mistral": Ends(("<s>", "</s>", "[INST]"), ("</s>",), "</s>", {"</s>"}),
    "exaone 4": Ends(("[BOS]", "[|endofturn|]"), ("[|endofturn|]",), "[|endofturn|]", {"[|endofturn|]"}),
    "without any": Ends(("[BOS]",), (), "", set()),
}


def _small(special: tuple[str, ...], plain: tuple[str, ...] = ()) -> Tokenizer:
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he"]
    fast = Tokenizer(models.BPE({token: token_id for token_id, token in enumerate(tokens)}, [("h", "e")]))
    fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    fast.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    return fast


def _both(fast: Tokenizer, own: str, generation: tuple[str, ...], folder: Path) -> tuple[set[str], set[str]]:
    """The ends of a folder and of a GGUF file with this tokenizer."""
    ids = fast.get_vocab()
    fast.save(str(folder / "tokenizer.json"))
    names = {"eos_token": own} if own else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    if generation:
        (folder / "generation_config.json").write_text(
            json.dumps({"eos_token_id": [ids[token] for token in generation]})
        )
    source = HuggingFaceSource(str(folder), {}, 64, (), folder)
    of_folder, _ = source.special_token_ids(load_tokenizer(folder, len(ids)))
    values = byte_level(fast, "gpt-2") | ({"tokenizer.ggml.eos_token_id": ids[own]} if own else {})
    of_file = read(folder / "file.gguf", values).end_ids
    named = dict.fromkeys(ids[token] for token in (*generation, *([own] if own else [])))
    assert of_folder[: len(named)] == tuple(named)
    texts = {token_id: token for token, token_id in ids.items()}
    return {texts[token_id] for token_id in of_folder}, {texts[token_id] for token_id in of_file}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_ends_at_the_same_tokens_from_its_folder_and_from_a_file(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    fast = _small(model.special, model.plain)
    assert _both(fast, model.own, model.generation, tmp_path) == (model.expected, model.expected)


@pytest.mark.parametrize("name", [name for name, family in (FAMILIES | MORE_FAMILIES).items() if family.is_byte_level])
def test_the_families_end_alike_from_both(name: str, tmp_path: Path) -> None:
    fast = Tokenizer.from_str(family_tokenizer(name).to_json())
    end = next(token for token, token_id in fast.get_vocab().items() if token_id == 0)
    of_folder, of_file = _both(fast, end, (), tmp_path)
    assert of_folder == of_file
    assert end in of_folder


def test_an_end_that_thoughts_have_too_is_none_even_where_a_file_names_it(tmp_path: Path) -> None:
    fast = _small(("<|return|>", "<|call|>", "<|end|>"))
    ids = fast.get_vocab()
    named = {"tokenizer.ggml.eos_token_id": ids["<|return|>"], "tokenizer.ggml.eot_token_id": ids["<|end|>"]}
    assert read(tmp_path / "file", byte_level(fast, "gpt-2") | named).end_ids == (ids["<|return|>"], ids["<|call|>"])

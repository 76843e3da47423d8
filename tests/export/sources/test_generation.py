"""How a source's maker draws tokens and where answers end: from a folder and from a GGUF file alike."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.folder.folder_tokenizer import load_tokenizer
from reader_edge_export.sources.folder.hugging_face import HuggingFaceSource
from reader_edge_export.sources.gguf.summary import summary_of
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.generation_config import OWN_SAMPLING
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.sources.gguf.gguf_checks import read
from tests.family_tokenizers import FAMILIES, MORE_FAMILIES, family_tokenizer
from tests.gguf_files import byte_level, small_vocabulary, write_small

QWEN = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
READ: list[tuple[dict[str, Any], dict[str, float]]] = [
    (QWEN, {name: value for name, value in QWEN.items() if name != "do_sample"}),
    ({"do_sample": True}, {"temperature": 1.0, "top_k": 50, "top_p": 1.0}),
    ({"do_sample": True, "top_k": 0, "min_p": 0.1}, {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.1}),
    ({"do_sample": True, "top_k": -1, "temperature": None}, {"temperature": 1.0, "top_k": 0, "top_p": 1.0}),
    ({"temperature": 0.7, "top_k": 20, "top_p": 0.8}, {}),
    ({"do_sample": False, "temperature": 0.7, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ({"do_sample": None, "repetition_penalty": 1.0}, {}),
    ({}, {}),
]


def _write(source: Path, generation: object) -> None:
    (source / "generation_config.json").write_text(json.dumps(generation))


@pytest.mark.parametrize(("generation", "expected"), READ)
def test_without_do_sample_nothing_is_drawn_and_what_is_left_out_is_as_of_transformers(
    source: Path, generation: dict[str, Any], expected: dict[str, float]
) -> None:
    _write(source, {"eos_token_id": 1, **generation})
    assert find_source(source, None).sampling() == expected


def test_the_defaults_of_drawing_are_those_of_transformers(source: Path) -> None:
    _write(source, {"do_sample": True})
    theirs = transformers.GenerationConfig._get_default_generation_params()
    read = find_source(source, None).sampling()
    assert read == {name: theirs[name] for name in OWN_SAMPLING if name in read}


def test_a_package_keeps_it_and_the_report_says_what_is_not_done(source: Path, tmp_path: Path) -> None:
    _write(source, QWEN | {"typical_p": 0.9, "num_beams": 1})
    options = ExportOptions(precision="fp32", check="none")
    report = export_model(source, tmp_path / "out", options)
    expected = {name: QWEN[name] for name in OWN_SAMPLING if name in QWEN}
    assert report.sampling == ModelPackage.open(tmp_path / "out").manifest.sampling == expected
    assert report.other_choices == ("typical_p",)


@pytest.mark.parametrize(
    ("generation", "names"),
    [
        ({"min_new_tokens": 8, "min_length": 4}, {"min_new_tokens", "min_length"}),
        ({"min_new_tokens": 0, "min_length": 0, "encoder_no_repeat_ngram_size": None, "token_healing": False}, set()),
        ({"stop_strings": ["END"], "dola_layers": "high"}, {"stop_strings", "dola_layers"}),
        ({"presence_penalty": 1.5, "frequency_penalty": 0}, {"presence_penalty"}),
    ],
)
def test_unsupported_choices_are_reported(source: Path, generation: dict[str, Any], names: set[str]) -> None:
    _write(source, generation)
    assert set(find_source(source, None).other_choices()) == names


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"temp": 0.7, "mirostat": 0, "mirostat_tau": 5.0, "xtc_probability": 0.0, "xtc_threshold": 0.1}, ()),
        ({"mirostat": 2, "mirostat_tau": 5.0}, ("mirostat", "mirostat_tau")),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.1}, ("xtc_probability", "xtc_threshold")),
        ({"penalty_repeat": 1.1, "penalty_last_n": 64}, ("penalty_last_n",)),
        ({"penalty_repeat": 1.1, "penalty_last_n": -1}, ()),
        ({"penalty_last_n": 64}, ()),
        ({"sequence": "kt", "another\n": 1.0}, ("sequence", r"another\n")),
    ],
)
def test_unsupported_gguf_keys_are_reported(keys: dict[str, Any], names: tuple[str, ...], tmp_path: Path) -> None:
    values = {f"general.sampling.{name}": value for name, value in keys.items()}
    source = find_source(write_small(tmp_path / "a.gguf", small_vocabulary(), values), None)
    assert source.other_choices() == tuple(f"general.sampling.{name}" for name in names)


@pytest.mark.parametrize(
    "generation",
    [
        {"do_sample": "yes"},
        {"do_sample": True, "temperature": "hot"},
        {"do_sample": True, "temperature": -1},
        {"do_sample": True, "top_k": 2.5},
        {"do_sample": True, "top_p": 7},
        {"temperature": float("nan")},
        {"repetition_penalty": 0},
        {"min_p": [0.1]},
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_file_and_value(source: Path, generation: dict[str, Any]) -> None:
    _write(source, generation)
    with pytest.raises(ExportError, match=r"generation_config\.json.*correct it"):
        find_source(source, None)


def test_a_gguf_file_of_the_same_model_says_the_same(tmp_path: Path) -> None:
    keys = {"temp": 0.7, "top_k": 20, "top_p": 0.8, "penalty_repeat": 1.05}
    values = {f"general.sampling.{name}": value for name, value in keys.items()}
    path = write_small(tmp_path / "a.gguf", small_vocabulary(), values)
    expected = {name: QWEN[name] for name in OWN_SAMPLING if name in QWEN}
    assert find_source(path, None).sampling() == summary_of(path).sampling == expected


def test_a_gguf_file_that_recommends_nothing_is_greedy_and_one_that_cannot_mean_it_is_refused(tmp_path: Path) -> None:
    assert find_source(write_small(tmp_path / "a.gguf", small_vocabulary()), None).sampling() == {}
    path = write_small(tmp_path / "b.gguf", small_vocabulary(), {"general.sampling.temp": "hot"})
    with pytest.raises(ExportError, match=r"general\.sampling.*temperature is 'hot'.*correct it"):
        find_source(path, None)
    assert "temperature is 'hot'" in (summary_of(path).refusal or "")


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

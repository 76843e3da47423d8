"""Packages of embedding models and rerankers: what they are known by, and that they compute what the source does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from reader_edge_export import ExportOptions, export_model
from reader_edge_export.sources.find import find_source
from reader_edge_runtime import Engine
from reader_edge_runtime.embeddings import INSTRUCTION
from reader_edge_runtime.errors import ConfigError, ExportError, GgufError, UnsupportedArchitectureError
from tests.export.gguf_models import build_source, write_model
from tests.tiny_models import VOCAB_SIZE, build_tiny_model

TEXTS = ["the cat sat on the mat", "tides rise and fall twice a day", "a"]
_MODULE = "sentence_transformers.models."
_END = {"SpecialToken": {"id": "<|eos|>", "type_id": 0}}


def pooled(folder: Path, *modules: str, **pooling: object) -> Path:
    """A tiny Qwen 3 as sentence-transformers stores it, whose tokenizer ends a text."""
    build_tiny_model("qwen3", folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64} | pooling))
    listed = [{"type": _MODULE + name} for name in ("Transformer", "Pooling", *modules)]
    (folder / "modules.json").write_text(json.dumps(listed))
    change_tokenizer(
        folder,
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, _END],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<|eos|>": {"id": "<|eos|>", "ids": [1], "tokens": ["<|eos|>"]}},
        },
    )
    return folder


def change_tokenizer(folder: Path, **changes: object) -> None:
    fields = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(fields | changes))


def with_answers(folder: Path) -> Path:
    """A tiny Qwen 3 whose tokenizer has the tokens "yes" and "no", with room for its prompt."""
    build_tiny_model("qwen3", folder, max_position_embeddings=1024)
    fields = json.loads((folder / "tokenizer.json").read_text())
    first, flags = len(fields["model"]["vocab"]), ("single_word", "lstrip", "rstrip", "normalized", "special")
    assert first + 2 <= VOCAB_SIZE
    added = [{"id": first + i, "content": text} | dict.fromkeys(flags, False) for i, text in enumerate(("yes", "no"))]
    change_tokenizer(folder, added_tokens=[*fields["added_tokens"], *added])
    return folder


def module_of(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pooled(tmp_path_factory.mktemp("embedding") / "source", "Normalize", pooling_mode_lasttoken=True)


@pytest.mark.parametrize(("precision", "least"), [("fp32", 1 - 1e-6), ("int8", 0.99)])
def test_an_embedding_is_the_modules_last_state(source: Path, tmp_path: Path, precision: str, least: float) -> None:
    export_model(source, tmp_path / "package", ExportOptions(precision=precision, check="none"))
    module = module_of(source)
    with Engine.load(tmp_path / "package", is_calibrated=False) as engine:
        vectors, cut = engine.embed(TEXTS), engine.embed(TEXTS, dimensions=8)
        assert engine.tokenizer.encode("a")[-1] == 1  # its end, by which the model was trained
        for text, vector, few in zip(TEXTS, vectors, cut, strict=True):
            with torch.no_grad():
                states = module.model(torch.tensor([engine.tokenizer.encode(text)])).last_hidden_state
            wanted = torch.nn.functional.normalize(states[0, -1], dim=0).numpy()
            assert float(vector @ wanted) > least
            assert np.allclose(few, vector[:8] / np.linalg.norm(vector[:8]), atol=1e-6)
        if precision == "fp32":
            assert np.abs(vectors[-1] - wanted).max() < 5e-6


def test_a_score_is_what_the_module_gives_yes(tmp_path: Path) -> None:
    source = with_answers(tmp_path / "Qwen3-Reranker-tiny")
    export_model(source, tmp_path / "package", ExportOptions(precision="fp32", check="none"))
    with Engine.load(tmp_path / "package", is_calibrated=False) as engine:
        scores = engine.rerank("cat", TEXTS)
        assert scores != engine.rerank("cat", TEXTS, "Find the tide")
        encode, module = engine.tokenizer.encode, module_of(source)
        yes, no = encode("yes", False)[0], encode("no", False)[0]
        for text, score in zip(TEXTS, scores, strict=True):
            prompt = torch.tensor([engine.reranker().prompt("cat", text)])
            assert INSTRUCTION in engine.tokenizer.decode(prompt[0].tolist())
            with torch.no_grad():
                logits = module(prompt).logits[0, -1]
            assert score == pytest.approx(float(torch.softmax(logits[[no, yes]], 0)[1]), abs=1e-5)
        with pytest.raises(ConfigError, match="makes no embeddings"):
            engine.embed(TEXTS)


@pytest.mark.parametrize(
    ("modules", "pooling", "found"),
    [
        (("Normalize",), {"pooling_mode": "lasttoken"}, "last"),
        ((), {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ((), {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True}, ""),
        ((), {"pooling_mode_mean_tokens": True}, ""),
        (("Dense",), {"pooling_mode_lasttoken": True}, ""),
        (("LogitScore",), {}, "rank"),
    ],
)
def test_only_what_is_computed_here_makes_a_model_one_of_embeddings(
    tmp_path: Path, modules: tuple[str, ...], pooling: dict[str, object], found: str
) -> None:
    assert find_source(str(pooled(tmp_path / "source", *modules, **pooling)), None).pooling == found


def test_an_embedding_model_needs_no_logit_head(tmp_path: Path) -> None:
    folder = pooled(tmp_path / "source", pooling_mode_lasttoken=True)  # as Qwen3-Embedding-8B: untied, without one
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    assert find_source(str(folder), None).open_model().names
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ExportError, match="lack lm_head"):
        find_source(str(folder), None).open_model()


def test_a_broken_list_of_modules_is_refused(tmp_path: Path) -> None:
    folder = pooled(tmp_path / "source", pooling_mode_lasttoken=True)
    (folder / "modules.json").write_text('[{"path": 1}]')
    with pytest.raises(ExportError, match=r"modules\.json' is no list of modules"):
        _ = find_source(str(folder), None).pooling


def test_gguf_files_say_what_they_are_made_for(tmp_path: Path) -> None:
    model = build_source("qwen3", tmp_path / "source")
    for kind, found in ((0, ""), (3, "last"), (4, "rank")):
        values = {"qwen3.pooling_type": kind, "tokenizer.ggml.add_eos_token": True}
        source = find_source(str(write_model(model, tmp_path / f"{kind}.gguf", values=values)), None)
        assert source.pooling == found
    assert source.load_tokenizer(VOCAB_SIZE)("a").input_ids[-1] == 1
    with pytest.raises(UnsupportedArchitectureError, match="not of their last tokens"):
        find_source(str(write_model(model, tmp_path / "1.gguf", values={"qwen3.pooling_type": 1})), None)


def test_a_reranker_in_gguf_is_read_where_its_rows_are_those_of_its_head(tmp_path: Path) -> None:
    with_answers(tmp_path / "other")
    model = build_source("qwen3", tmp_path / "source")
    (tmp_path / "source" / "tokenizer.json").write_bytes((tmp_path / "other" / "tokenizer.json").read_bytes())
    ids = [find_source(str(tmp_path / "source"), None).load_tokenizer(VOCAB_SIZE).vocab[each] for each in ("yes", "no")]
    rows = model.get_parameter("model.embed_tokens.weight").detach().numpy()[ids]
    values = {"qwen3.pooling_type": 4, "qwen3.classifier.output_labels": ["yes", "no"]}
    values |= {"tokenizer.chat_templates": ["rerank"], "tokenizer.chat_template.rerank": "{query} {document}"}
    for tensor, is_own in ((rows, True), (rows[::-1].copy(), False)):
        path = write_model(model, tmp_path / "model.gguf", values=values, tensors={"cls.output.weight": tensor})
        source = find_source(str(path), None)
        assert source.load_tokenizer(VOCAB_SIZE).chat_template is None
        if is_own:
            assert source.open_model().names
            continue
        with pytest.raises(GgufError, match="lacks the logit head that its row of 'yes' is of"):
            source.open_model()

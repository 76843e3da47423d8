"""A GGUF file becomes a package like any other."""

import hashlib
from pathlib import Path

import gguf
from tokenizers import Tokenizer

from reader_edge_export import ExportOptions, export_model
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.gguf_models import build_source, write_model


def test_a_package_from_a_file_is_checked_and_says_what_it_is_from(tmp_path: Path) -> None:
    model = build_source("llama", tmp_path / "source")
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    path = write_model(
        model,
        tmp_path / "source",
        tmp_path / "tiny.gguf",
        gguf.GGMLQuantizationType.Q8_0,
        values={"tokenizer.chat_template": template, "tokenizer.ggml.eot_token_id": 0},
    )
    report = export_model(path, tmp_path / "out", ExportOptions(precision="fp32"))
    assert report.weight_types == ("Q8_0", "F32")
    own, written = (Tokenizer.from_file(str(tmp_path / place / "tokenizer.json")) for place in ("source", "out"))
    assert report.ends == ("<|eos|>", own.id_to_token(0))
    package = ModelPackage.open(tmp_path / "out")
    package.check_files()
    manifest = package.manifest
    assert (manifest.source_name, manifest.architecture) == ("tiny.gguf", "llama")
    assert manifest.source_fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (manifest.eos_token_ids, manifest.bos_token_id) == ((1, 0), 0)
    assert manifest.checks["tree_logit_error"] < 5e-6
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == template
    text = "the cat sat on the mat, <|eos|> 123 Zürich"
    assert written.encode(text).ids == own.encode(text).ids

"""A package's successor table says what the package says after each token."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

from reader_edge import Engine, GenerationConfig
from reader_edge.cli import main
from reader_edge.terminal.formatting import readable_size
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.package import successors
from reader_edge_export.package.pass_chain import WholePackage
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.export.whole_models import logits_after
from tests.tiny_models import VOCAB_SIZE

Exported = Callable[[str, str, str], Path]


def table_of(package: ModelPackage) -> SuccessorTable:
    table = SuccessorTable.of_package(package, Tokenizer.open(package).fingerprint())
    assert table is not None
    return table


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_table_is_what_decoding_says_after_each_token(exported: Exported, precision: str) -> None:
    package = ModelPackage.open(exported("llama", precision, "exact"))
    table, target = table_of(package), HostTarget.open(package)
    question = Tokenizer.open(package).encode_chat(Conversation([{"role": "user", "content": "Tell me something."}]))
    question = question[-package.manifest.max_context // 2 :]
    assert table.token_ids.shape == (VOCAB_SIZE, package.manifest.top_k)
    for token in (0, 7, VOCAB_SIZE - 1):
        logits = logits_after(target, question, [token], 1)[0]
        assert table.token_ids[token].tolist() == np.argsort(-logits, kind="stable")[: package.manifest.top_k].tolist()
        np.testing.assert_array_equal(table.logits[token], logits[table.token_ids[token]])


def test_info_tells_of_the_table_and_of_hidden_states(exported: Exported) -> None:
    package = ModelPackage.open(exported("llama", "int8", "exact"))
    told = CliRunner().invoke(main, ["info", str(package.folder)]).stdout
    manifest, size = package.manifest, package.path("successors.bin").stat().st_size
    assert f"{manifest.hidden_size} numbers a token, which a trained head reads" in told
    assert f"{manifest.top_k} successors of {VOCAB_SIZE} tokens, {readable_size(size)} (successors.bin)" in told
    fields = json.loads(CliRunner().invoke(main, ["info", str(package.folder), "--json"]).stdout)
    assert (fields["num_table_tokens"], fields["hidden_size"]) == (VOCAB_SIZE, manifest.hidden_size)


def test_large_vocabularies_are_asked_for_their_first_tokens() -> None:
    assert successors.num_table_tokens(49_152, 135_000_000) < 49_152
    assert successors.num_table_tokens(VOCAB_SIZE, 1000) == VOCAB_SIZE


def test_a_tuning_asks_large_models_for_more_tokens_up_to_where_more_bring_little() -> None:
    small, middling, large = (
        [successors.num_table_tokens(150_000, size, patience) for patience in (1, 10)]
        for size in (100_000_000, 500_000_000, 7_000_000_000)
    )
    assert small == [22_000, 22_000]
    assert middling == [4_400, 16_384]
    assert large == [314, 3_140]


def test_a_table_fits_a_short_context(source: Path, tmp_path: Path) -> None:
    export_model(source, tmp_path / "out", ExportOptions(precision="fp32", max_context=24))
    assert len(table_of(ModelPackage.open(tmp_path / "out"))) == VOCAB_SIZE


def test_answers_drafted_from_a_table_are_the_plain_ones(exported: Exported) -> None:
    engine = Engine.load(exported("llama", "int8", "exact"))
    answers = [
        engine.generate("the cat", GenerationConfig(max_tokens=40, is_drafted=drafted)) for drafted in (False, True)
    ]
    assert answers[0].token_ids == answers[1].token_ids


def test_a_vocabulary_without_the_questions_letters_has_a_table_too(exported: Exported) -> None:
    package = ModelPackage.open(exported("llama", "int8", "exact"))
    model = Tokenizer(FastTokenizer(BPE({"1": 0}, [])))
    assert model.encode("Tell me something.") == []
    assert len(successors.measure_successors(WholePackage(HostTarget.open(package)), model, 9)) == 9

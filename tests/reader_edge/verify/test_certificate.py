"""Certificates of proofs: what they hold, and that one which does not hold is found out."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.prompts import EvalPrompt
from reader_edge.verify.certificate import check_certificate, check_verdict, read_certificate, write_certificate
from reader_edge.verify.proof import prove
from reader_edge.verify.variants import TimeBudget
from reader_edge_runtime import Engine
from reader_edge_runtime.errors import ReaderEdgeError, UserFileError
from tests.fuzz.mutation import mutated_json


@pytest.fixture(scope="module")
def written(shared_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a short proof of the demo found."""
    questions = [EvalPrompt(text) for text in ("# tar\n", "# git", "1 2 3")]
    path = tmp_path_factory.mktemp("certificate") / "certificate.json"
    write_certificate(path, shared_engine, prove(shared_engine, questions, 6, budget=TimeBudget(1)), 6)
    return path


def verdict(fields: dict[str, Any], path: Path, engine: Engine) -> tuple[bool, str]:
    path.write_text(json.dumps(fields), "utf-8")
    check = check_certificate(read_certificate(path), path, engine)
    return check.is_kept, check_verdict(check)


@pytest.mark.long
def test_a_certificate_holds_where_it_was_written(written: Path, shared_engine: Engine) -> None:
    fields = json.loads(written.read_bytes())
    assert fields["package"] == shared_engine.package.fingerprint().hex()
    assert fields["tokens_compared"] > 0
    assert fields["divergences"] == 0
    assert [len(each["token_ids"]) for each in fields["sample"]] == [6, 6, 6]
    check = check_certificate(read_certificate(written), written, shared_engine)
    assert check.is_kept
    assert check.answers_equal == check.bits_equal == 3
    assert check.counts.tokens_compared == check.counts.logit_rows == 2 * 3 * 6
    assert check_verdict(check).endswith("as it was certified, to the bit.")


def _other_token(fields: dict[str, Any]) -> None:
    fields["sample"][0]["token_ids"][2] ^= 1


def _other_bits(fields: dict[str, Any]) -> None:
    fields["sample"][0]["bits"] = "0" * 64


def _elsewhere(fields: dict[str, Any]) -> None:
    fields["machine"]["processor"] = "Another"


@pytest.mark.parametrize(
    ("changes", "is_kept", "words"),
    [
        ((_other_token,), False, "like the one that wrote it, and gives other answers or bits"),
        ((_other_bits,), False, "like the one that wrote it, and gives other answers or bits"),
        ((_elsewhere, _other_bits), True, "The certificate holds: .* as it was certified\\."),
        ((_elsewhere, _other_token), False, "Other answers than certified"),
        ((lambda fields: fields.update(divergences=1),), False, "itself says that drafting changed answers"),
        ((lambda fields: fields.update(is_promise_kept=False),), False, "itself says that drafting changed answers"),
    ],
)
def test_a_certificate_that_does_not_hold_is_found_out(
    written: Path,
    shared_engine: Engine,
    tmp_path: Path,
    changes: tuple[Callable[[dict[str, Any]], None], ...],
    is_kept: bool,
    words: str,
) -> None:
    fields = json.loads(written.read_bytes())
    for change in changes:
        change(fields)
    found, sentence = verdict(fields, tmp_path / "changed.json", shared_engine)
    assert found == is_kept
    assert re.search(words, sentence)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("package", "0" * 64, "certifies the package 0000.*, not "),
        ("sample", [], r"unusable sample"),
        ("tokens_compared", -1, r"unusable tokens_compared"),
        ("format", "another", "unusable format"),
    ],
)
def test_what_is_no_certificate_of_this_package_is_refused(
    written: Path, shared_engine: Engine, tmp_path: Path, name: str, value: object, words: str
) -> None:
    fields = json.loads(written.read_bytes()) | {name: value}
    with pytest.raises(UserFileError, match=words):
        verdict(fields, tmp_path / "changed.json", shared_engine)


def test_tokens_that_the_model_does_not_have_are_refused(written: Path, shared_engine: Engine, tmp_path: Path) -> None:
    fields = json.loads(written.read_bytes())
    fields["sample"][0]["prompt_token_ids"] = [shared_engine.package.manifest.vocab_size]
    with pytest.raises(ReaderEdgeError, match="token"):
        verdict(fields, tmp_path / "changed.json", shared_engine)


def test_spoilt_certificates_end_in_a_verdict_or_a_sentence(
    written: Path, shared_engine: Engine, tmp_path: Path
) -> None:
    """tests/fuzz reads many more; here the model decodes what can be read."""
    good = json.loads(written.read_bytes())
    good["sample"] = copy.deepcopy(good["sample"][:1])
    content, path = json.dumps(good).encode(), tmp_path / "spoilt.json"
    sentences = []
    for number in range(60):
        path.write_bytes(mutated_json(content, Random(f"certificate {number}")))  # noqa: S311
        try:
            sentences.append(check_verdict(check_certificate(read_certificate(path), path, shared_engine)))
        except ReaderEdgeError as error:
            sentences.append(str(error))
    assert [each for each in sentences if "\n" in each or not each.endswith(".")] == []


@pytest.mark.usefixtures("few_drafters")
def test_verify_writes_a_certificate_and_checks_one_that_is_there(runner: CliRunner, tmp_path: Path) -> None:
    prompts, path = tmp_path / "prompts.txt", tmp_path / "certificate.json"
    prompts.write_text("# tar\n")
    command = ["verify", "-n", "3", "--minutes", "0.02", "--certificate", str(path)]
    result = runner.invoke(main, [*command, "--prompts", str(prompts)])
    assert result.exit_code == 0
    assert f"The certificate is '{path}'." in result.stderr
    content = path.read_bytes()
    checked = runner.invoke(main, command)
    assert checked.exit_code == 0
    assert "drafted here  6 tokens compared, 0 divergences" in checked.stdout
    assert json.loads(runner.invoke(main, [*command, "--json"]).stdout)["is_kept"] is True
    assert path.read_bytes() == content
    path.write_bytes(content.replace(b'"divergences": 0', b'"divergences": 7'))
    assert runner.invoke(main, command).exit_code == 1
    path.write_bytes(b"{}")
    refused = runner.invoke(main, command)
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"Error: '{path}' has an unusable format")

"""Model cards: what a page about a package says, and that nothing in a package becomes markup."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.models import model_card as model_card_module
from reader_edge.models.model_card import licence_of, model_card
from reader_edge_runtime.package.model_package import ModelPackage
from tests.reader_edge.package_copy import PackageCopy


def metadata(page: str) -> dict[str, str]:
    """The lines on top, each NAME: VALUE."""
    found = re.match(r"---\n((?:\w+: .+\n)+)---\n\n# ", page)
    assert found is not None
    return dict(line.split(": ", 1) for line in found[1].splitlines())


def test_a_card_has_source_sizes_quality_and_how_to_run(runner: CliRunner, package: PackageCopy) -> None:
    result = runner.invoke(main, ["card", str(package.folder)])
    assert result.exit_code == 0
    assert result.stderr == "The source's licence is not known here: look it up, and name it with --license.\n"
    page, manifest = result.stdout, package.read_manifest()
    assert metadata(page) == {
        "library_name": "reader-edge",
        "pipeline_tag": "text-generation",
        "tags": '["onnx", "reader-edge", "speculative-decoding", "int8"]',
    }
    assert f"| source fingerprint (SHA-256) | `{manifest['source_fingerprint']}` |" in page
    assert "| `model.onnx.data` | 8.3 MB |" in page
    assert f"| top-1 agreement | {100 * manifest['checks']['top1_agreement']:.1f} % of the tokens |" in page
    assert "reader-edge run FOLDER" in page
    assert "## Proof" not in page


def test_a_model_of_the_hub_is_named_with_its_licence(runner: CliRunner, package: PackageCopy, tmp_path: Path) -> None:
    package.change_manifest(source_name="smollm2:135m")
    output = tmp_path / "README.md"
    command = ["card", str(package.folder), "-o", str(output), "--license", "apache-2.0"]
    result = runner.invoke(main, command)
    assert (result.exit_code, result.output) == (0, "")
    named = metadata(output.read_text("utf-8"))
    assert named["license"] == '"apache-2.0"'
    assert named["base_model"] == '"HuggingFaceTB/SmolLM2-135M-Instruct"'
    assert named["base_model_relation"] == "quantized"
    output.write_text("Mine.", "utf-8")
    refused = runner.invoke(main, command)
    assert refused.exit_code == 2
    assert "--force to replace it" in refused.stderr
    assert output.read_text("utf-8") == "Mine."
    assert runner.invoke(main, [*command, "--force"]).exit_code == 0


@pytest.mark.parametrize(
    ("page", "licence"),
    [
        ("---\nlanguage: en\nlicense: MIT\n---\n# A model", "mit"),
        ("---\nlicense: 'gemma'\n---\n", "gemma"),
        ("---\nlicense: [a, b]\n---\n", None),
        ("license: mit\n", None),
        ("", None),
    ],
)
def test_the_licence_is_read_from_the_source_that_is_here(
    package: PackageCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, licence: str | None
) -> None:
    (tmp_path / "README.md").write_text(page, "utf-8")
    monkeypatch.setattr(model_card_module, "found_here", lambda name: tmp_path if name == "owner/name" else None)
    package.change_manifest(source_name="owner/name")
    assert licence_of(ModelPackage.open(package.folder).manifest) == licence
    package.change_manifest(source_name="checkpoint")
    assert licence_of(ModelPackage.open(package.folder).manifest) is None


def test_speed_is_what_was_measured_here(runner: CliRunner, package: PackageCopy) -> None:
    without = model_card(ModelPackage.open(package.folder), None, None)
    assert "## Speed" not in without
    measured = json.loads(runner.invoke(main, ["bench", "cost", str(package.folder), "--json"]).stdout)
    page = runner.invoke(main, ["card", str(package.folder)]).stdout
    first = " | ".join(f"{1e3 * seconds[0]:.2f}" for seconds in measured["seconds"])
    assert f"| 1 | {first} |" in page


def test_nothing_that_a_manifest_says_becomes_markup(package: PackageCopy) -> None:
    opened = ModelPackage.open(package.folder)
    opened.manifest = replace(opened.manifest, source_name="`<b> | [x](y)", architecture="a`b|c")
    page = model_card(opened, None, None)
    assert "# `<b>  [x](y)` for reader-edge" in page
    assert "| architecture | `abc` |" in page

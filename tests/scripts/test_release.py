"""What a release rests on: pinned actions, and a bill of what a wheel brings along that its metadata does not name."""

import hashlib
import json
import re
import tomllib
from typing import Any

import pytest

from tests.conftest import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGE = ROOT / "reader_edge" / "server" / "page"


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "bundled.cdx.json").read_text("utf-8"))
    return content


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_and_name_their_version(workflow: Any) -> None:
    uses = re.findall(r"uses: *(.+)", workflow.read_text("utf-8"))
    assert uses
    assert [each for each in uses if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_an_action_has_one_version_in_all_workflows() -> None:
    uses = {use for path in WORKFLOWS for use in re.findall(r"uses: *(\S+)", path.read_text("utf-8"))}
    assert len({use.partition("@")[0] for use in uses}) == len(uses)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_tools_of_a_release_are_pinned(workflow: Any) -> None:
    """Of what is fetched to build with; CI's own tools are those of pyproject.toml."""
    installs = re.findall(r"\bpip install (.+)", workflow.read_text("utf-8"))
    tools = [word for line in installs for word in line.split() if "reader-edge" not in word and word[0] not in '-".']
    assert [word for word in tools if word != "here" and not re.fullmatch(r"[\w.-]+==[\w.]+", word)] == []


def test_the_bill_has_the_version_and_the_scripts_that_are_here(bill: dict[str, Any]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert bill["metadata"]["component"]["version"] == version
    parts = {part["name"]: part for part in bill["components"]}
    readme = (PAGE / "README.md").read_text("utf-8")
    for name, title, file in (("marked", "marked", "marked.umd.js"), ("dompurify", "DOMPurify", "purify.min.js")):
        (stated,) = re.findall(rf"\[{title}\]\(\S+\) ([\d.]+)", readme)
        assert parts[name]["purl"] == f"pkg:npm/{name}@{stated}"
        assert parts[name]["hashes"][0]["content"] == hashlib.sha256((PAGE / file).read_bytes()).hexdigest()
    models = [part for part in bill["components"] if part["type"] == "machine-learning-model"]
    assert {part["version"] for part in models} == {version}

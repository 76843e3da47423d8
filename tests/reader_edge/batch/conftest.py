"""A batch's files, requests to fill them with, and some that are answered."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reader_edge.cli import main


class Files:
    """An input, and where its answers go."""

    def __init__(self, folder: Path) -> None:
        self.given, self.out = folder / "given.jsonl", folder / "out.jsonl"

    def write(self, *lines: object) -> None:
        self.given.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def run(self, *options: str) -> Result:
        arguments = [str(self.given), str(self.out), *options, "--no-calibrate"]
        return CliRunner().invoke(main, ["batch", *arguments, "--name", "demo"])

    def answers(self) -> dict[str, Any]:
        """What was answered, by custom_id; each once."""
        lines = [json.loads(line) for line in self.out.read_text().splitlines()]
        assert max(Counter(line["custom_id"] for line in lines).values(), default=1) == 1
        return {line["custom_id"]: line["response"] for line in lines}

    def texts(self) -> dict[str, str]:
        return {name: response["body"]["choices"][0]["text"] for name, response in self.answers().items()}


def request(number: int, url: str = "/v1/completions", **body: object) -> dict[str, object]:
    fields = {"model": "demo", "prompt": f"# tar {number}", "temperature": 0, "max_tokens": 10 + number} | body
    return {"custom_id": f"request {number}", "method": "POST", "url": url, "body": fields}


REQUESTS = [request(number) for number in range(12)]


def assert_refused(result: Result, words: str, code: int = 1) -> None:
    """One sentence, with these words."""
    assert result.exit_code == code
    assert result.stderr.startswith(f"Error: {words}"), result.stderr
    assert result.stderr.count("\n") == 1


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture(scope="session")
def answered(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """REQUESTS and their answers; not to be changed."""
    files = Files(tmp_path_factory.mktemp("answered"))
    files.write(*REQUESTS)
    result = files.run(str(demo_folder))
    assert (result.exit_code, result.output) == (0, ""), result.output
    return files

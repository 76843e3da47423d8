"""How a `datastore` command is run and how it failed, and its tokenizer."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from reader_edge.cli import main

Command = Callable[..., Result]
TEXT = "the cat sat on the mat\n" * 3 + "the dog sat on the rug\n"


def failed(result: Result, exit_code: int = 1) -> str:
    """The one sentence with which a command failed."""
    assert result.exit_code == exit_code
    assert result.stdout == ""
    return result.stderr.splitlines()[-1].removeprefix("Error: ")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A byte-level tokenizer with its few merges."""
    folder = tmp_path / "model"
    folder.mkdir()
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    trained.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def command(runner: CliRunner, tokenizer: Path) -> Command:
    """Runs `datastore`; build and search get the tokenizer."""

    def run(name: str, *arguments: object) -> Result:
        more = ["--tokenizer", str(tokenizer)] if name in ("build", "search") else []
        return runner.invoke(main, ["datastore", name, *map(str, arguments), *more])

    return run

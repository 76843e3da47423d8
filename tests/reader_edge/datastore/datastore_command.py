"""How a `datastore` command is run and how it failed, and the corpus that its tokenizer is trained on."""

from collections.abc import Callable

from click.testing import Result

Command = Callable[..., Result]

TEXT = "the cat sat on the mat\n" * 3 + "the dog sat on the rug\n"


def failed(result: Result, exit_code: int = 1) -> str:
    """The one sentence with which a command failed."""
    assert result.exit_code == exit_code
    assert result.stdout == ""
    return result.stderr.splitlines()[-1].removeprefix("Error: ")

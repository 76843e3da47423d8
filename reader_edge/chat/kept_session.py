"""A conversation that goes on in another process: `run --session`."""

from pathlib import Path

from reader_edge.chat.answer import system_messages
from reader_edge_runtime import Engine, Message
from reader_edge_runtime.atomic_file import check_writable, write_failure
from reader_edge_runtime.decoding.session import check_rows
from reader_edge_runtime.errors import ConfigError, SessionError
from reader_edge_runtime.text.conversation import Prompt

_MARK = b"\x89redgs"  # that exact and lossy ones begin with


def check_session_place(path: Path) -> None:
    """Raise SessionError where a session would take the place of something else."""
    if path.is_file():
        with path.open("rb") as file:
            is_free = file.read(len(_MARK)) == _MARK
    else:
        is_free = not path.exists()
    if not is_free:
        raise SessionError(f"'{path}' is there, and no session: name another file.")


class KeptSession:
    """messages: the conversation so far, a system message included; none of a model without a chat template.

    Opening it loads the file where there is one. Raises SessionError, also for a
    model over several boxes, and ConfigError for another system message than
    it began with.
    """

    def __init__(self, engine: Engine, path: Path, system: str | None) -> None:
        self._engine = engine
        self._path = path
        check_rows(engine.decoder)
        try:
            check_writable(path)  # before an answer that could not be kept
        except OSError as error:
            raise SessionError(write_failure(path, error, "try again")) from error
        self.messages = engine.load_session(path) if path.exists() else []
        if self.messages and system is not None and self.messages[0] != system_messages(system)[0]:
            raise ConfigError(f"The session in '{path}' began with another system message: leave -s out.")

    def prompt(self, prompt: Prompt) -> Prompt:
        """The next prompt, behind the conversation so far; a plain text stands alone."""
        return prompt if isinstance(prompt, str) or not self.messages else [*self.messages, prompt[-1]]

    def save(self, messages: list[Message] | None = None) -> None:
        """Keep what the engine holds, and the conversation by now. Raises SessionError."""
        self.messages = self.messages if messages is None else messages
        self._engine.save_session(self._path, self.messages)

    def save_answer(self, prompt: Prompt, answer: str) -> None:
        """Keep the answer to a prompt too. Raises SessionError."""
        self.save(None if isinstance(prompt, str) else [*prompt, {"role": "assistant", "content": answer}])

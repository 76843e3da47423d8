"""A package answers prompts of its user and the bundled ones, and what it thought meanwhile is kept in a folder."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from reader_edge_export.heads.held_out import FEWEST_ANSWERS
from reader_edge_export.heads.instructions import instructions
from reader_edge_export.heads.self_written import Manner, SelfWritten
from reader_edge_export.heads.state_recorder import RecordedAnswer
from reader_edge_runtime.atomic_file import write_failure
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.tokenizer import Tokenizer

Progress = Callable[[int, int], None]


class Answering:
    """kind: of what is kept, where it is not what heads learn from; one folder holds one kind."""

    def __init__(self, package: ModelPackage, folder: Path, kind: str = "") -> None:
        self._package = package
        self._folder = folder
        self._kind = kind
        self.has_template = Tokenizer.open(package).has_chat_template

    def written(
        self, prompts: Sequence[Encodable], manner: Manner, num_tokens: int, until: float, on_progress: Progress
    ) -> list[RecordedAnswer]:
        """Answers to these prompts first, then to bundled instructions, until there are so many tokens.

        Parts that are there are kept. until: of the monotonic clock, when writing ends.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExportError(write_failure(self._folder, error, "the same command resumes")) from error
        asked = list(map(self._asked, prompts))
        owner = self._package.fingerprint()
        if asked or self._kind:  # others are answered first, or none
            owner = hashlib.sha256(owner + repr(asked).encode() + self._kind.encode()).digest()
        written = SelfWritten(self._folder, owner, manner)
        asked += map(self._asked, instructions())
        written.write(self._package.folder, asked, num_tokens, until, on_progress)
        answers: list[RecordedAnswer] = []
        num_written = 0
        for part in written.parts():
            for answer in part:
                if num_written < num_tokens or len(answers) < FEWEST_ANSWERS:
                    answers.append(answer)
                    num_written += len(answer.top_ids)
        return answers

    def _asked(self, prompt: Encodable) -> Encodable:
        """A text as a user's message, where the model has a template for such."""
        is_message = isinstance(prompt, str) and self.has_template
        return [{"role": "user", "content": prompt}] if is_message else prompt

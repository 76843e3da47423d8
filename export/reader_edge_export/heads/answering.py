"""A package answers prompts of its user and the bundled ones, and what it thought meanwhile is kept in a folder."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from reader_edge_export.heads.answer_arrays import AnswerSizes
from reader_edge_export.heads.held_out import FEWEST_ANSWERS
from reader_edge_export.heads.instructions import instructions
from reader_edge_export.heads.self_written import Manner, SelfWritten
from reader_edge_export.heads.state_recorder import RecordedAnswer
from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.conversation import Conversation, Prompt
from reader_edge_runtime.text.tokenizer import Tokenizer

Progress = Callable[[int, int], None]


class Answering:
    """state_ids: of the states that are kept for speculators; empty for heads, which read others. One kind a folder."""

    def __init__(self, package: ModelPackage, folder: Path, state_ids: tuple[int, ...] = ()) -> None:
        self._package = package
        self._folder = folder
        self._state_ids = state_ids
        self.has_template = Tokenizer.open(package).has_chat_template

    def written(
        self, prompts: Sequence[Prompt], manner: Manner, num_tokens: int, until: float, on_progress: Progress
    ) -> list[RecordedAnswer]:
        """Answers to these prompts first, then to bundled instructions, until there are so many tokens.

        Parts that are there are kept. until: of the monotonic clock, when writing ends.
        """
        asked = [asked_as(prompt, self.has_template) for prompt in prompts]
        owner = self._package.fingerprint()
        if asked or self._state_ids:  # others are answered first, or none
            kind = f"states {self._state_ids}" if self._state_ids else ""
            owner = hashlib.sha256(owner + repr(asked).encode() + kind.encode()).digest()
        manifest = self._package.manifest
        assert manifest.hidden_size is not None  # which was checked first
        sizes = AnswerSizes(
            manifest.vocab_size, manifest.hidden_size * max(1, len(self._state_ids)), bool(self._state_ids)
        )
        written = SelfWritten(self._folder, owner, manner, sizes)
        asked += [asked_as(prompt, self.has_template) for prompt in instructions()]
        written.write(self._package.folder, asked, num_tokens, until, on_progress)
        answers: list[RecordedAnswer] = []
        num_written = 0
        for part in written.parts():
            for answer in part:
                if num_written < num_tokens or len(answers) < FEWEST_ANSWERS:
                    answers.append(answer)
                    num_written += len(answer.top_ids)
        return answers


def asked_as(prompt: Prompt, has_template: bool) -> Prompt:
    """A text as a user's message, where the model has a template for such."""
    is_message = isinstance(prompt, str) and has_template
    return [{"role": "user", "content": prompt}] if is_message else prompt


def check_prompts(package: ModelPackage, prompts: Mapping[str, Prompt]) -> None:
    """Raise PromptError, which names its place, for a prompt that the model cannot be asked. prompts: by place."""
    tokenizer = Tokenizer.open(package)
    for place, prompt in prompts.items():
        asked = asked_as(prompt, tokenizer.has_chat_template)
        try:
            ids = tokenizer.encode(asked) if isinstance(asked, str) else tokenizer.encode_chat(Conversation(asked))
            Request(ids, GenerationConfig(), package.manifest)
        except PromptError as error:
            raise PromptError(f"{place}: {error}") from None

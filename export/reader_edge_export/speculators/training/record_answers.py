"""Records what speculators learn from: a package answers prompts, and its hidden states and scores go to a folder."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path

from reader_edge_export.speculators.training.generated_answers import AnswerSizes, GeneratedAnswers, RecordingConfig
from reader_edge_export.speculators.training.state_recorder import RecordedAnswer
from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.conversation import Conversation, Prompt
from reader_edge_runtime.text.tokenizer import Tokenizer

Progress = Callable[[int, int], None]

FEWEST_ANSWERS = 16  # of which one is held out


class AnswerRecording:
    """state_ids: of the states that are kept. One kind a folder."""

    def __init__(self, package: ModelPackage, folder: Path, state_ids: tuple[int, ...]) -> None:
        self._package = package
        self._folder = folder
        self._state_ids = state_ids
        self.has_template = Tokenizer.open(package).has_chat_template

    def written(
        self,
        prompts: Sequence[Prompt],
        recording: RecordingConfig,
        num_tokens: int,
        until: float,
        on_progress: Progress,
    ) -> list[RecordedAnswer]:
        """Answers to these prompts first, then to bundled instructions, until there are so many tokens.

        Parts that are there are kept. until: of the monotonic clock, when writing ends.
        """
        own = [as_message(prompt, self.has_template) for prompt in prompts]
        kind = f"{own} states {self._state_ids}"
        owner = hashlib.sha256(self._package.fingerprint() + kind.encode()).digest()
        manifest = self._package.manifest
        assert manifest.hidden_size is not None  # which was checked first
        sizes = AnswerSizes(manifest.vocab_size, manifest.hidden_size * len(self._state_ids))
        written = GeneratedAnswers(self._folder, owner, recording, sizes)
        bundled = [as_message(prompt, self.has_template) for prompt in instructions()]
        written.write(self._package.folder, own + bundled, num_tokens, until, on_progress)
        answers: list[RecordedAnswer] = []
        num_written = 0
        for part in written.parts():
            for answer in part:
                if num_written < num_tokens or len(answers) < FEWEST_ANSWERS:
                    answers.append(answer)
                    num_written += len(answer.top_ids)
        return answers


def as_message(prompt: Prompt, has_template: bool) -> Prompt:
    """A text as a user's message, where the model has a template for such."""
    is_message = isinstance(prompt, str) and has_template
    return [{"role": "user", "content": prompt}] if is_message else prompt


def check_prompts(package: ModelPackage, prompts: Mapping[str, Prompt]) -> None:
    """Raise PromptError, which names its place, for a prompt that the model cannot answer. prompts: by place."""
    tokenizer = Tokenizer.open(package)
    for place, prompt in prompts.items():
        prompt = as_message(prompt, tokenizer.has_chat_template)
        try:
            ids = tokenizer.encode(prompt) if isinstance(prompt, str) else tokenizer.encode_chat(Conversation(prompt))
            Request(ids, GenerationConfig(), package.manifest)
        except PromptError as error:
            raise PromptError(f"{place}: {error}") from None


def held_out_apart(answers: Sequence[RecordedAnswer]) -> tuple[list[RecordedAnswer], list[RecordedAnswer]]:
    """Answers to learn from, and those to every 16th prompt, all that there are to it."""
    numbers: dict[bytes, int] = {}
    parts: tuple[list[RecordedAnswer], list[RecordedAnswer]] = [], []
    for answer in answers:
        number = numbers.setdefault(answer.prompt_ids.tobytes(), len(numbers))
        parts[number % FEWEST_ANSWERS == FEWEST_ANSWERS - 1].append(answer)
    return parts


def instructions() -> list[str]:
    """All bundled ones, every form of words with every topic, in an order of which any part mixes both."""
    forms, topics = _lines("forms.txt"), _lines("topics.txt")  # whose numbers have no divisor in common
    count = len(forms) * len(topics)
    return [forms[i % len(forms)].replace("{}", topics[i % len(topics)]) for i in range(count)]


def _lines(name: str) -> list[str]:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8").splitlines()

"""What a small draft model learns from: texts side by side, and what its target thought at places of the answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.measuring import say
from reader_edge_export.heads.examples import shares
from reader_edge_export.heads.held_out import FEWEST_ANSWERS, held_out_apart
from reader_edge_export.heads.instructions import instructions
from reader_edge_export.heads.self_written import SelfWritten
from reader_edge_export.heads.state_recorder import RecordedAnswer
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer

Tensor = torch.Tensor
Answers = Sequence[RecordedAnswer]

_PASS_BEGINS = 0.4  # of the places of a text that is learned from: 2.5 tokens a pass


@dataclass(frozen=True, slots=True)
class DraftTexts:
    """B prompts with answers, and P places of these, one answer's behind another's.

    token_ids: int64 (B, S), filled up behind each text. places: int64 (P,), of B x S, without the last prompt token.
    numbers: int64 (P,), from 0 in each answer. top, share: int64 and float32 (P, K), the target's best after each
    place, best first, and their probabilities among themselves. states: float32 (P, E), which the token there was
    chosen from.
    """

    token_ids: Tensor
    places: Tensor
    numbers: Tensor
    top: Tensor
    share: Tensor
    states: Tensor

    @classmethod
    def of(cls, answers: Answers) -> "DraftTexts":
        """answers: each of two tokens or more of which the target was heard."""
        width = max(len(answer.prompt_ids) + len(answer.states) for answer in answers)
        token_ids = np.zeros((len(answers), width), np.int64)
        places, numbers = [], []
        for row, answer in enumerate(answers):
            text = np.concatenate([answer.prompt_ids, answer.token_ids])[:width]
            token_ids[row, : len(text)] = text
            numbers.append(np.arange(len(answer.states) - 1))
            places.append(numbers[-1] + row * width + len(answer.prompt_ids) + 1)
        top_ids = np.concatenate([answer.top_ids[1:] for answer in answers])
        share = np.concatenate([shares(answer.top_logits[1:]) for answer in answers])
        states = np.concatenate([answer.states[:-1] for answer in answers])
        return cls(
            torch.from_numpy(token_ids),
            torch.from_numpy(np.concatenate(places)),
            torch.from_numpy(np.concatenate(numbers)),
            torch.from_numpy(top_ids).long(),
            torch.from_numpy(share),
            torch.from_numpy(states).float(),
        )

    def drawn_depths(self, generator: torch.Generator) -> Tensor:
        """How many tokens each place is behind the last state known to a draft, int64 (P,), as if passes began there.

        The first place of an answer has the state of its own token's choice, and every other may have it.
        """
        begins = (torch.rand(len(self.places), generator=generator) < _PASS_BEGINS) | (self.numbers == 0)
        here = torch.arange(len(begins))
        return 1 + here - torch.cummax(here * begins, 0).values

    def even_depths(self, period: int, first: int) -> Tensor:
        """The same where every pass brings `period` tokens, the first of them fewer by `first`."""
        return 1 + torch.minimum((self.numbers + first) % period, self.numbers)


def write_answers(package: ModelPackage, folder: Path, num_tokens: int) -> None:
    """Have bundled instructions answered until there are so many tokens; what `train-drafter` wrote is gone on with."""
    if package.manifest.hidden_size is None:
        raise ExportError(f"'{package.folder}' reports no hidden states: export the model again.")
    folder.mkdir(parents=True, exist_ok=True)
    has_template = Tokenizer.open(package).has_chat_template
    prompts = [[{"role": "user", "content": text}] if has_template else text for text in instructions()]
    written = SelfWritten(folder, package.fingerprint())
    written.write(package.folder, prompts, num_tokens, float("inf"), lambda done, of: say(f"{done} of {of} tokens"))


def read_answers(package: ModelPackage, folder: Path) -> tuple[Answers, Answers]:
    """Those to learn from, and those held out. Raises ExportError where there are too few."""
    parts = SelfWritten(folder, package.fingerprint()).parts()
    answers = [answer for part in parts for answer in part if len(answer.states) > 1]
    if len(answers) < FEWEST_ANSWERS:
        raise ExportError(f"'{folder}' holds {len(answers)} answers, too few to learn from: ask for more --tokens.")
    return held_out_apart(answers)

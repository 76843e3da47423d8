"""Which answers measure heads, and train none."""

from collections.abc import Sequence

from reader_edge_export.heads.state_recorder import RecordedAnswer

FEWEST_ANSWERS = 16  # of which one is held out


def held_out_apart(answers: Sequence[RecordedAnswer]) -> tuple[list[RecordedAnswer], list[RecordedAnswer]]:
    """Answers to learn from, and those to every 16th prompt, all that there are to it."""
    numbers: dict[bytes, int] = {}
    parts: tuple[list[RecordedAnswer], list[RecordedAnswer]] = [], []
    for answer in answers:
        number = numbers.setdefault(answer.prompt_ids.tobytes(), len(numbers))
        parts[number % FEWEST_ANSWERS == FEWEST_ANSWERS - 1].append(answer)
    return parts

"""Generated tasks whose answers can be checked: lookups, copying, editing, JSON fields, short arithmetic.

They are as hard as a model of 135 million parameters needs them to be: it gets three of four right.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from reader_edge_runtime.text.conversation import Encodable

NAMES, CITIES, JOBS, THINGS = (
    tuple(words.split())
    for words in (
        "Anna Boris Clara David Elena Farid Greta Hugo Irene Jonas Karin Lukas Maria Nadia Oscar Paula Rosa Simon Tara",
        "Oslo Lyon Porto Riga Turin Ghent Bergen Malaga Krakow Dublin Zurich Athens Vienna Prague",
        "baker nurse pilot lawyer farmer painter teacher plumber tailor writer",
        "lamp chair table kettle blanket mirror basket bottle ladder pillow hammer bucket",
    )
)


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked, of a kind; `stop` ends the answer.

    final: what an answer comes to, whatever its words. right: what it should come to.
    is_question: whether the prompt is to be put through a chat template, where there is one.
    """

    kind: str
    prompt: str
    final: Callable[[str], object]
    right: object
    stop: tuple[str, ...] = ("\n\n",)
    is_question: bool = False

    def is_right(self, answer: str) -> bool:
        return self.final(answer) == self.right

    def asked(self, has_chat_template: bool) -> Encodable:
        """The prompt, as a model with or without a template is asked."""
        return [{"role": "user", "content": self.prompt}] if self.is_question and has_chat_template else self.prompt


def tasks(num_tasks: int, seed: int = 0) -> list[Task]:
    """So many tasks, kinds in turn; the same of a seed."""
    source = random.Random(seed)  # noqa: S311  # the same seed gives the same tasks
    return [_MAKERS[number % len(_MAKERS)](source) for number in range(num_tasks)]


def _lookup(source: random.Random) -> Task:
    names, cities = source.sample(NAMES, 2), source.sample(CITIES, 2)
    said = " ".join(f"{name} lives in {city}." for name, city in zip(names, cities, strict=True))
    chosen = source.randrange(2)
    asked = f"{said}\nIn which city does {names[chosen]} live? Answer in one sentence."

    def named(answer: str) -> set[str]:
        return {city for city in cities if city in answer}

    return Task("lookup", asked, named, {cities[chosen]}, ("\n",), is_question=True)


def _copy(source: random.Random) -> Task:
    things = source.sample(THINGS, 4)
    whole = ", ".join(things[1:])
    prompt = f"Original: {things[0]}, {whole}.\nCopy: {things[0]},"
    return Task("copy", prompt, str.strip, f"{whole}.", ("\n",))


def _edit(source: random.Random) -> Task:
    things = source.sample(THINGS, 5)
    right = "\n".join([things[1], *(f"{number}. {thing}" for number, thing in enumerate(things[2:], start=3))])
    prompt = f"Original: {', '.join(things)}.\nNumbered:\n1. {things[0]}\n2."
    return Task("edit", prompt, str.strip, right)


def _json(source: random.Random) -> Task:
    def example() -> tuple[str, dict[str, object]]:
        name, job, city = source.choice(NAMES), source.choice(JOBS), source.choice(CITIES)
        age = source.randint(20, 79)
        text = f"{name}, {age}, is a {job} and lives in {city}."
        return f"Text: {text}\nJSON:", {"name": name, "age": age, "job": job, "city": city}

    examples, (asked, right) = [example() for _ in range(2)], example()
    shown = "".join(f"{text} {json.dumps(fields)}\n\n" for text, fields in examples)
    return Task("json", shown + asked, _json_of, right)


def _arithmetic(source: random.Random) -> Task:
    def example() -> tuple[str, str]:
        first, second = source.randint(11, 29), source.randint(2, 9)
        total = first + second
        asked = f"{source.choice(NAMES)} has {first} apples and gets {second} more. How many are there?"
        return f"Question: {asked}\nAnswer:", f"{first} + {second} = {total}. There are {total} apples."

    examples, (asked, right) = [example() for _ in range(6)], example()
    shown = "".join(f"{question} {answer}\n\n" for question, answer in examples)
    return Task("arithmetic", shown + asked, _numbers_of, _numbers_of(right))


def _json_of(answer: str) -> object:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        return answer


def _numbers_of(answer: str) -> list[str]:
    return re.findall(r"\d+", answer)


_MAKERS = (_lookup, _copy, _edit, _json, _arithmetic)

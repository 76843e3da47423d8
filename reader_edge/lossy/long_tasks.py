"""Generated lookups in long prompts: facts hidden in filler of 600 to 1,400 tokens, most of which bears on nothing.

A model of 135 million parameters finds three of five.
"""

import random
from collections.abc import Callable

from reader_edge.lossy.tasks import CITIES, JOBS, NAMES, THINGS, Task

_NUM_FACTS = 2
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_PLACES = ("market", "harbour", "library", "station", "garden", "museum", "bakery", "theatre", "school", "bridge")
_DEEDS = ("repaired", "painted", "carried", "sold", "cleaned", "lost", "found", "borrowed", "measured", "photographed")
_FILLERS: tuple[Callable[[random.Random], str], ...] = (
    lambda source: (
        f"On {source.choice(_DAYS)} a {source.choice(JOBS)} {source.choice(_DEEDS)} a {source.choice(THINGS)}."
    ),
    lambda source: f"The {source.choice(_PLACES)} was closed until {source.choice(_DAYS)}, and nobody knew why.",
    lambda source: (
        f"Near the {source.choice(_PLACES)} stood a {source.choice(THINGS)} that a {source.choice(JOBS)} had left."
    ),
    lambda source: (
        f"It rained on {source.choice(_DAYS)}, so the {source.choice(JOBS)} stayed at the {source.choice(_PLACES)}."
    ),
)


def long_tasks(num_tasks: int, seed: int = 0) -> list[Task]:
    """So many tasks, kinds in turn; the same of a seed."""
    source = random.Random(seed)  # noqa: S311  # the same seed gives the same tasks
    return [_MAKERS[number % len(_MAKERS)](source) for number in range(num_tasks)]


def _city(source: random.Random) -> Task:
    names, cities = source.sample(NAMES, _NUM_FACTS), source.sample(CITIES, _NUM_FACTS)
    said = [f"{name} lives in {city}." for name, city in zip(names, cities, strict=True)]
    return _task("city", source, said, f"In which city does {names[0]} live?", cities)


def _code(source: random.Random) -> Task:
    names, codes = source.sample(NAMES, _NUM_FACTS), [str(code) for code in source.sample(range(100, 1000), _NUM_FACTS)]
    said = [f"The locker of {name} has the number {code}." for name, code in zip(names, codes, strict=True)]
    return _task("number", source, said, f"What number does the locker of {names[0]} have?", codes)


def _job(source: random.Random) -> Task:
    names, jobs = source.sample(NAMES, _NUM_FACTS), source.sample(JOBS, _NUM_FACTS)
    said = [f"{name} works as a {job}." for name, job in zip(names, jobs, strict=True)]
    return _task("job", source, said, f"What does {names[0]} work as?", jobs)


def _task(kind: str, source: random.Random, said: list[str], asked: str, values: list[str]) -> Task:
    sentences = [source.choice(_FILLERS)(source) for _ in range(source.randint(48, 110))]
    for each in said:
        sentences.insert(source.randrange(len(sentences) + 1), each)
    prompt = f"{' '.join(sentences)}\n\n{asked} Answer in one sentence."

    def named(answer: str) -> set[str]:
        return {value for value in values if value in answer}

    return Task(kind, prompt, named, {values[0]}, ("\n",), is_question=True)


_MAKERS = (_city, _code, _job)

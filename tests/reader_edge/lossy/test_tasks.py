"""Generated tasks: the same of a seed, of every kind, and checked by what their answers mean."""

from collections.abc import Callable

import pytest

from reader_edge.lossy.long_tasks import long_tasks
from reader_edge.lossy.tasks import NAMES, Task, tasks


def of_kind(kind: str) -> Task:
    return next(task for task in tasks(10) if task.kind == kind)


def test_a_seed_gives_the_same_tasks_kinds_in_turn() -> None:
    first, again, other = tasks(10, 1), tasks(10, 1), tasks(10, 2)
    assert [task.prompt for task in first] == [task.prompt for task in again]
    assert all(a.prompt != b.prompt for a, b in zip(first, other, strict=True))
    assert [task.kind for task in first] == ["lookup", "copy", "edit", "json", "arithmetic"] * 2


def _listed(task: Task) -> list[str]:
    return task.prompt.split("\n")[0].removeprefix("Original: ").removesuffix(".").split(", ")


def _right_copy(task: Task) -> str:
    return f" {', '.join(_listed(task)[1:])}."


def _right_edit(task: Task) -> str:
    second, *others = _listed(task)[1:]
    return "\n".join([f" {second}", *(f"{number}. {each}" for number, each in enumerate(others, start=3))])


def _right_lookup(task: Task) -> str:
    said, asked = task.prompt.split("\n")
    name = asked.removeprefix("In which city does ").split()[0]
    return next(each for each in said.split(". ") if each.startswith(name)).removesuffix(".") + "."


@pytest.mark.parametrize(("kind", "right"), [("copy", _right_copy), ("edit", _right_edit), ("lookup", _right_lookup)])
def test_an_answer_is_right_that_says_what_the_prompt_holds(kind: str, right: Callable[[Task], str]) -> None:
    task = of_kind(kind)
    assert task.is_right(right(task))
    assert not task.is_right(right(task)[:-4])
    assert not task.is_right("")


def test_json_is_right_by_what_it_means() -> None:
    task = of_kind("json")
    name, age, rest = task.prompt.split("\n")[-2].removeprefix("Text: ").split(", ")
    job, city = rest.removeprefix("is a ").removesuffix(".").split(" and lives in ")
    assert task.is_right(f'{{"city": "{city}", "job": "{job}", "age": {age}, "name": "{name}"}}')
    assert not task.is_right(f'{{"city": "{city}", "job": "{job}", "age": "{age}", "name": "{name}"}}')
    assert not task.is_right(f'{{"city": "{city}", "job')


def test_arithmetic_is_right_where_all_numbers_are() -> None:
    task = of_kind("arithmetic")
    first, second = (int(word) for word in task.prompt.split("\n")[-2].split() if word.isdigit())
    total = first + second
    assert task.is_right(f" {first} + {second} = {total}. There are {total} apples.")
    assert not task.is_right(f" {first} + {second} = {total}. There are {total + 1} apples.")


@pytest.mark.parametrize("number", range(3), ids=["city", "number", "job"])
def test_a_long_task_hides_two_facts_of_which_one_is_asked_for(number: int) -> None:
    task = long_tasks(3, 1)[number]
    said, asked = task.prompt.split("\n\n")
    facts = [each for each in said.split(". ") if "lives in" in each or "the number" in each or "works as" in each]
    right, wrong = sorted(facts, key=lambda fact: not any(name in asked for name in NAMES if name in fact))
    assert task.is_right(f"{right}.")
    assert not task.is_right(f"{wrong}.")
    assert not task.is_right(f"{right}. {wrong}.")
    assert len(task.prompt.split()) > 400
    assert task.is_question
    assert long_tasks(3, 1)[number].prompt == task.prompt != long_tasks(3, 2)[number].prompt

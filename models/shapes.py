"""Pictures of drawn shapes, and questions about them whose answers are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIDE = 64  # pixels of a picture
COLOURS = {
    **{"red": (215, 45, 40), "green": (40, 150, 60), "blue": (45, 70, 205), "yellow": (235, 205, 40)},
    "black": (25, 25, 25),
}
FORMS = ("circle", "square", "triangle", "cross")
PLACES = ("top left", "top right", "bottom left", "bottom right")
_NUMBERS = ("no shapes", "one shape", "two shapes", "three shapes", "four shapes")
_CELL = SIDE // 2
_TINT = 20  # by how much each channel of a colour may be off
DESCRIBE, COUNT = "Describe the picture.", "How many shapes are there?"


@dataclass(frozen=True, slots=True)
class Picture:
    """shapes: by the place of each in PLACES, its colour and form. pixels: uint8 (SIDE, SIDE, 3)."""

    shapes: dict[str, tuple[str, str]]
    pixels: NDArray[np.uint8]

    def answer(self, question: str) -> str:
        """Of one of QUESTIONS."""
        if question == COUNT:
            return f"The picture has {_NUMBERS[len(self.shapes)]}."
        if question == DESCRIBE:
            return " ".join([self.answer(COUNT), *map(self._at, self.shapes)])
        return self._at(next(place for place in PLACES if place in question))

    def _at(self, place: str) -> str:
        if place not in self.shapes:
            return f"Nothing is at the {place}."
        return f"A {' '.join(self.shapes[place])} is at the {place}."


QUESTIONS = (DESCRIBE, COUNT, *(f"What is at the {place}?" for place in PLACES))


def draw(random: np.random.Generator) -> Picture:
    """One to four shapes, a quarter of the picture each, on a light ground."""
    pixels = np.empty((SIDE, SIDE, 3), np.uint8)
    pixels[:] = random.integers(190, 256, 3)
    kept = random.permutation(4)[: random.integers(1, 5)]
    shapes: dict[str, tuple[str, str]] = {}
    for number in sorted(kept.tolist()):
        colour, form = str(random.choice(list(COLOURS))), str(random.choice(FORMS))
        top, left = number // 2 * _CELL, number % 2 * _CELL
        tint = np.array(COLOURS[colour]) + random.integers(-_TINT, _TINT + 1, 3)
        cell = pixels[top : top + _CELL, left : left + _CELL]
        cell[_inside(form, random)] = tint.clip(0, 255)
        shapes[PLACES[number]] = colour, form
    return Picture(shapes, pixels)


def _inside(form: str, random: np.random.Generator) -> NDArray[np.bool_]:
    """Which pixels of a cell a shape covers, bool (_CELL, _CELL); its size and place differ."""
    radius = random.uniform(8, 13)
    down, right = random.uniform(radius, _CELL - radius, 2)
    y, x = np.mgrid[:_CELL, :_CELL] + 0.5
    y, x = y - down, x - right
    match form:
        case "circle":
            inside = y**2 + x**2 <= radius**2
        case "square":
            inside = np.maximum(abs(y), abs(x)) <= 0.9 * radius
        case "triangle":
            inside = (abs(x) <= (y + radius) / 2) & (y <= radius)
        case _:
            inside = (np.minimum(abs(y), abs(x)) <= radius / 4) & (np.maximum(abs(y), abs(x)) <= radius)
    return np.asarray(inside, np.bool_)

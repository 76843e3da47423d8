"""Questions about images that are drawn for a proof, before and between texts; two differ in their image alone."""

import importlib.util
from collections.abc import Sequence

import numpy as np

from reader_edge.prompts import EvalPrompt
from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.arrays import UInt8Array
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.images.decode import MISSING_PILLOW

CATEGORY = "images"
_SIZES = ((40, 64), (40, 64), (56, 32))  # in pixels; a model enlarges them where it must
_NUM_SHAPES = 4


def questions_about_images(
    engine: Engine, questions: Sequence[EvalPrompt], config: GenerationConfig
) -> tuple[list[EvalPrompt], list[str]]:
    """Questions that have texts of these and drawn images, none for a model of texts; and why some were left out."""
    if engine.package.manifest.images is None:
        return [], []
    if importlib.util.find_spec("PIL") is None:
        return [], [MISSING_PILLOW]
    from PIL import Image

    one, other, third = (Image.fromarray(drawn_image(seed, *size)) for seed, size in enumerate(_SIZES))
    first, second, *_ = 2 * sorted((question.text for question in questions), key=len)
    found, refusals = list[EvalPrompt](), list[str]()
    for content in ([one, first], [other, first], [second, third, first], [first, other, second, one, first]):
        kinds = ["text" if isinstance(each, str) else "image" for each in content]
        parts = [{"type": kind, kind: each} for kind, each in zip(kinds, content, strict=True)]
        prompt = [{"role": "user", "content": parts}]
        try:
            Request(engine.encode_prompt(prompt), config, engine.package.manifest)
            found.append(EvalPrompt(prompt, CATEGORY))
        except PromptError as error:
            refusals.append(str(error))
    return found, refusals


def drawn_image(seed: int, height: int, width: int) -> UInt8Array:
    """Discs on a gradient, uint8 (H, W, 3). The same seed draws the same."""
    random = np.random.Generator(np.random.Philox(seed))
    rows, columns = np.mgrid[:height, :width, :1][:2]
    start, down, right = random.integers(256, size=(3, 3))
    pixels = (start + down * rows // height + right * columns // width) // 3
    for _ in range(_NUM_SHAPES):
        row, column, radius = random.random(3) * (height, width, min(height, width) / 2)
        is_inside = (rows - row) ** 2 + (columns - column) ** 2 < radius**2
        pixels = np.where(is_inside, random.integers(256, size=3), pixels)
    return np.asarray(pixels, np.uint8)

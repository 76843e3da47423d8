"""Record what transformers' torchvision processors make of pictures: hashes of pixels, and the texts of processors.

Run by hand, with transformers 5.23 and torchvision 0.28: python -m tests.runtime.images.record_pixels
PyPI's torchvision is built for CUDA; beside a CPU's torch, names of its operators must be there before it is imported.
"""

import hashlib
import json
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.arrays import UInt8Array
from tests.export.images.published_processors import PROCESSORS
from tests.runtime.images.published_rules import CASES, PICTURES, case_name

FILE = Path(__file__).parents[2] / "data" / "pixel_values.json"


def digest(parts: list[npt.NDArray[np.float32]]) -> str:
    """Of parts of an image, in the order in which patches are read from an image."""
    found = hashlib.sha256()
    for part in parts:
        found.update(repr(part.shape).encode())
        found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _name_operators() -> None:
    import torch

    spec = find_spec("torchvision")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    text = (Path(spec.submodule_search_locations[0]) / "_meta_registrations.py").read_text("utf-8")
    library = torch.library.Library("torchvision", "DEF")
    for name in set(re.findall(r"torchvision::([a-z_0-9]+)", text)) | set(
        re.findall(r"register_meta\(\"([a-z_0-9]+)\"\)", text)
    ):
        library.define(name + "(Tensor a) -> Tensor")
    _KEPT.append(library)


_KEPT: list[Any] = []


def recorded(name: str, image: UInt8Array) -> tuple[list[npt.NDArray[np.float32]], str]:
    """Parts, each as patches (P, ...) by rows or as pixels (1, 3, H, W), and the text."""
    import transformers as tf
    from PIL import Image

    published = PROCESSORS[name]
    processor_class, settings = published.image_class, published.image_settings
    given = {key: value for key, value in settings.items() if key not in ("image_processor_type", "processor_class")}
    processor = getattr(tf, processor_class)(**given)
    options: dict[str, Any] = {"return_tensors": "pt"}
    if name.startswith(("lfm2", "smolvlm", "idefics3")):
        options["return_row_col_info"] = True
    if name == "mistral3":
        options["patch_size"] = 28
    found = processor(Image.fromarray(image), **options)
    return _parts(name, found), _text(name, published, processor, found)


def _parts(name: str, found: Any) -> list[npt.NDArray[np.float32]]:
    pixels = found["pixel_values"]
    if name.startswith("qwen"):
        return [pixels.numpy()]
    if name.startswith("lfm2"):
        sizes = found["spatial_shapes"].tolist()
        return [part[: rows * columns].numpy() for part, (rows, columns) in zip(pixels, sizes, strict=True)]
    if name == "gemma4":
        return [pixels[0][: int(found["num_soft_tokens_per_image"][0]) * 9].numpy()]
    if name == "mistral3":
        _, channels, height, width = pixels.shape
        cut = pixels[0].reshape(channels, height // 14, 14, width // 14, 14).permute(1, 3, 0, 2, 4)
        return [cut.reshape(-1, channels * 14 * 14).numpy()]
    return [part[None].numpy() for part in (pixels if name == "gemma3" else pixels[0])]


def _text(name: str, published: Any, processor: Any, found: Any) -> str:
    """By the processor's own method, without a tokenizer."""
    import transformers as tf

    kind = getattr(tf, published.processor_class)
    own = SimpleNamespace(image_processor=processor, **published.processor_attributes)
    for each in (
        "_get_image_num_tokens",
        "_build_image_tokens",
        "_compute_tokens_per_tile",
        "_compute_tokens_for_image",
    ):
        if hasattr(kind, each):
            setattr(own, each, getattr(kind, each).__get__(own))
    return str(kind.replace_image_token(own, found, 0, use_image_special_tokens=True))


def main() -> None:
    _name_operators()
    table = {}
    for name, picture, size in CASES:
        parts, text = recorded(name, PICTURES[picture](*size))
        key = case_name(name, picture, size)
        table[key] = [digest(parts), text_digest(text)]
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(digests)}" for key, digests in table.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", "utf-8")


if __name__ == "__main__":
    main()

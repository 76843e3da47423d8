"""An engine that sees images without weights: a tokenizer, a chat template and a tower that is counted."""

import json
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from reader_edge_runtime import DraftConfig, Engine, EngineConfig
from reader_edge_runtime.arrays import Array, Float32Array
from reader_edge_runtime.assembly import make_decoder
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.images.image_encoder import ImageEncoder
from reader_edge_runtime.images.prompt_reader import PromptReader
from reader_edge_runtime.package.manifest import CHAT_TEMPLATE_NAME, TOKENIZER_NAME, file_entry
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.conftest import ROOT
from tests.fake_images import SeeingTarget, images_part
from tests.fake_target import make_manifest

MARK = "<|image_pad|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% elif message.role != 'tool' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENS = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", MARK)


class CountedTower:
    """Features are means of patches. num_passes: images it was given."""

    def __init__(self) -> None:
        self.num_passes = 0

    def features(self, inputs: Mapping[str, Array], may_run: object = None) -> Float32Array:
        self.num_passes += 1
        blocks = inputs["patches"].reshape(len(inputs["patches"]) // 4, 4, -1)
        means: Float32Array = np.stack([blocks.mean((1, 2)), blocks[:, 0].mean(1)], 1, dtype=np.float32)
        return means


def add_tokens(path: Path, tokens: tuple[str, ...]) -> int:
    """Write special tokens into a tokenizer.json behind its vocabulary; returns the id of the last."""
    fields = json.loads(path.read_text("utf-8"))
    first: int = max([*fields["model"]["vocab"].values(), *(each["id"] for each in fields["added_tokens"])]) + 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    fields["added_tokens"] += [{"id": first + n, "content": text, **flags} for n, text in enumerate(tokens)]
    path.write_text(json.dumps(fields), "utf-8")
    return first + len(tokens) - 1


def seeing_engine(folder: Path, max_context: int = 512, **config: Any) -> tuple[Engine, CountedTower]:
    """folder: an empty one, for the package's tokenizer and chat template. config: fields of EngineConfig."""
    path = folder / TOKENIZER_NAME
    path.write_bytes((ROOT / "models" / "demo" / "package" / TOKENIZER_NAME).read_bytes())
    token_id = add_tokens(path, TOKENS)
    (folder / CHAT_TEMPLATE_NAME).write_text(TEMPLATE, "utf-8")
    files = {name: file_entry(folder / name) for name in (TOKENIZER_NAME, CHAT_TEMPLATE_NAME)}
    part = replace(images_part(), token_id=token_id)
    manifest = replace(make_manifest(token_id + 1, max_context), head_dim=5, images=part, files=files)
    package = ModelPackage(folder, manifest)
    settings = EngineConfig(is_calibrated=False, **config)
    tokenizer, tower = Tokenizer.open(package, settings.is_text_literal), CountedTower()
    decoder = make_decoder(SeeingTarget(manifest), RetrievalDrafter(DraftConfig()).wait(), settings)
    engine = Engine(package, tokenizer, decoder)
    reader = PromptReader(tokenizer, max_context, ImageEncoder(part, lambda: tower))
    engine.__dict__["_prompt_reader"] = reader  # in place of the package's graph
    return engine, tower


def picture(seed: int, width: int = 12, height: int = 8) -> Image.Image:
    """Of (width / 4) * (height / 4) tokens."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def png(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()

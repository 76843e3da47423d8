"""What is lost of an image: a package's features against the source's, and what both tell its text model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge_export.checks.quality import MAX_MEAN_KL, KlDivergence
from reader_edge_export.package.pass_chain import PassChain
from reader_edge_runtime.arrays import Float32Array, UInt8Array
from reader_edge_runtime.decoding.prompt_images import PromptImages
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ParityError
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.images.patches import PreparedImage
from reader_edge_runtime.package.package_parts import ImagesPart
from reader_edge_runtime.target import Pass

_SIDES = 192, 256
NUM_TOKENS = 128  # of a text behind the image


def drawn_picture() -> UInt8Array:
    """Shapes on a slope of colours, and a little noise: (H, W, 3), the same each time."""
    rows, columns = np.mgrid[: _SIDES[0], : _SIDES[1]] / np.array(_SIDES).reshape(2, 1, 1)
    picture = np.stack([255 * rows, 255 * columns, 128 + 60 * np.sin(40 * rows * columns)], -1)
    picture[(rows - 0.4) ** 2 + (columns - 0.3) ** 2 < 0.05] = 230, 40, 30
    picture[(rows > 0.5) & (abs(columns - 0.7) < 0.2)] = 20, 60, 200
    picture[(rows * 40 % 4 < 1) & (columns > 0.8)] = 250
    noisy = picture + np.random.default_rng(0).normal(scale=6, size=picture.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


@dataclass(slots=True)
class _SeenPart:
    """An `EncodedImage` of features (L, E) that are there."""

    rows: int
    columns: int
    features: Float32Array
    digest: bytes = bytes(32)

    @property
    def num_tokens(self) -> int:
        return len(self.features)

    def load(self, may_run: Callable[[], bool]) -> bool:
        return True

    def drop(self) -> None:
        """They stay."""


@dataclass(frozen=True, slots=True)
class TextsBehindImage:
    """Divergence of a package's text model that reads its own features from one that reads the source's.

    part: the image, or its first tile. expected, features: the source's and the package's (L, E). token_ids: a text.
    """

    about: ImagesPart
    part: PreparedImage
    expected: Float32Array
    features: Float32Array
    token_ids: Sequence[int]

    @property
    def chains(self) -> Sequence[PassChain]:
        ids = [*[self.about.token_id] * len(self.features), *self.token_ids]
        text_rows = range(len(self.features), len(ids))
        chains = []
        for features in (self.expected, self.features):
            seen = PromptImages(ids, [_SeenPart(*self.part.grid, features)], self.about).rows(0, len(ids))
            wanted = Pass(0, [DraftTree.chain(ids)], [text_rows], wants_logits=True, num_kept=len(ids), images=seen)
            chains.append(PassChain([[]], [wanted]))
        return chains

    def figures(self, results: Iterator[ForwardResult]) -> dict[str, float]:
        divergence = KlDivergence()
        expected = next(results).wanted_logits[0].copy()  # valid until the next one
        divergence.add(expected, next(results).wanted_logits[0])
        mean_kl = divergence.figures()["mean_kl_nats"]
        if not mean_kl <= MAX_MEAN_KL:
            raise ParityError(
                f"What sees images, rounded, moves the text behind one by {mean_kl:.2g} nats a token (limit "
                f"{MAX_MEAN_KL:g}): export with --image-precision fp32."
            )
        return {"image_kl_nats": mean_kl}

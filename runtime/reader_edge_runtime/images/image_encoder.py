"""Images as a model reads them: rows of features that its tower makes once, and the text that stands for each."""

import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import numpy as np

from reader_edge_runtime.arrays import Array, Float32Array
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.images.decode import GivenImage, ImageSource
from reader_edge_runtime.images.layout import lay_out
from reader_edge_runtime.images.patches import prepare
from reader_edge_runtime.package.package_parts import ImagesPart

_MOST_KEPT_BYTES = 1 << 28  # 8 MB hold 1024 tokens of 2048 numbers


class VisionTower(Protocol):
    """A package's graph of images."""

    def features(self, inputs: Mapping[str, Array], may_run: Callable[[], bool]) -> Float32Array | None:
        """Of an image, or of a tile: float32 (L, row_size); None once it may run no longer.

        inputs: see `images.patches`. Raises ProviderError.
        """
        ...


class FeatureStore:
    """Makes features, one image at a time, and keeps those that were used last, up to so many bytes. Thread-safe.

    A salt finds its own alone: how long an image takes would tell others that it was seen.
    """

    def __init__(self, open_tower: Callable[[], VisionTower], most_bytes: int = _MOST_KEPT_BYTES) -> None:
        self._open_tower = open_tower
        self._most_bytes = most_bytes
        self._tower: VisionTower | None = None
        self._kept: dict[tuple[str, bytes], Float32Array] = {}
        self._lock = threading.Lock()  # of what is kept, which nobody holds while a tower runs
        self._running = threading.Lock()

    def features(
        self, digest: bytes, image: GivenImage, part: ImagesPart, salt: str, may_run: Callable[[], bool]
    ) -> Float32Array | None:
        """Of the image that has this digest. salt: as of `GenerationConfig`.

        may_run: whether the tower may, which is looked at before its passes and within; None where it may not.
        Raises ImageError for pixels that cannot be decoded, and ProviderError.
        """
        name = salt, digest
        if (found := self._found(name)) is not None or not may_run():
            return found
        with self._running:
            if (found := self._found(name)) is None and may_run():
                found = self._made(image, part, may_run)
                if found is not None:
                    self._keep(name, found)
        return found

    def _found(self, name: tuple[str, bytes]) -> Float32Array | None:
        with self._lock:
            found = self._kept.pop(name, None)
            if found is not None:
                self._kept[name] = found
            return found

    def _made(self, image: GivenImage, part: ImagesPart, may_run: Callable[[], bool]) -> Float32Array | None:
        self._tower = self._tower or self._open_tower()
        found = list[Float32Array]()
        for each in prepare(image.pixels(), part.rules):
            features = self._tower.features(each.inputs, may_run) if may_run() else None
            if features is None:
                return None
            if features.shape != (each.num_tokens, part.row_size):
                given = f"features of shape {features.shape}, where its rules say {(each.num_tokens, part.row_size)}"
                raise ProviderError(f"The graph of images gives {given}: export the model again.")
            found.append(features)
        whole = np.concatenate(found)
        whole.flags.writeable = False
        return whole

    def _keep(self, name: tuple[str, bytes], features: Float32Array) -> None:
        with self._lock:
            self._kept[name] = features
            while sum(each.nbytes for each in self._kept.values()) > self._most_bytes:
                del self._kept[next(iter(self._kept))]


class SeenImage:
    """An image of a prompt.

    digest: SHA-256 of all that its features come from. rows, columns: of its tokens, where they have positions of their
    own. num_tokens: L. num_pixels: as it was given. text: stands for it in the prompt. No file is decoded for these.
    """

    def __init__(self, image: GivenImage, part: ImagesPart, store: FeatureStore, salt: str = "") -> None:
        """salt: of its request. Raises ImageError for one that the model cannot take."""
        layout = lay_out(*image.size, part.rules, image.name)
        digest = hashlib.sha256(msgspec.json.encode([part.rules, image.size]))
        for each in image.content:
            digest.update(each)
        self.digest = digest.digest()
        self.rows, self.columns = layout.parts[0].grid
        self.num_tokens, self.text = layout.num_tokens, layout.text
        self.num_pixels = image.size[0] * image.size[1]
        self._image = image
        self._part, self._store, self._salt = part, store, salt
        self._features: Float32Array | None = None

    @property
    def features(self) -> Float32Array:
        """float32 (L, row_size), from the tower where nobody has them. Raises ImageError and ProviderError."""
        self.load(lambda: True)
        assert self._features is not None
        return self._features

    def load(self, may_run: Callable[[], bool]) -> bool:
        """Have features, and return whether they are here. may_run, errors: see `FeatureStore.features`."""
        if self._features is None:
            self._features = self._store.features(self.digest, self._image, self._part, self._salt, may_run)
        return self._features is not None

    def drop(self) -> None:
        """Hold its features no more: the store has them, or they are made again."""
        self._features = None


class ImageEncoder:
    """Opens images for one model. open_tower: called when the first image is read."""

    def __init__(self, part: ImagesPart, open_tower: Callable[[], VisionTower]) -> None:
        self.part = part
        self._store = FeatureStore(open_tower)

    def open(self, source: ImageSource, name: str, salt: str) -> SeenImage:
        """Read an image's header. name: what sentences call it. salt: of its request.

        Raises ImageError, or InstallationError without Pillow.
        """
        return SeenImage(GivenImage(source, name), self.part, self._store, salt)

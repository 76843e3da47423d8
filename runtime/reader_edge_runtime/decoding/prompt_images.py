"""Images in a prompt: the ids of their tokens, what passes read in place of embeddings, and rotary positions.

An image's token has an id of its own, made of a digest of the image and the token's number in it: texts that differ in
an image differ in their ids, so that nothing that compares texts takes one image's rows for another's. No vocabulary
reaches these ids, and nothing but decoding sees them: drafters and penalties get the text without images.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.package.images import MAX_IMAGE_TOKENS
from reader_edge_runtime.package.package_parts import ImagesPart
from reader_edge_runtime.target import ImageRows

DIGEST_BYTES = 32
ID_BYTES = DIGEST_BYTES + 4
_NUMBER_BITS = MAX_IMAGE_TOKENS.bit_length() - 1
_MARK = 1 << 8 * DIGEST_BYTES  # above every digest, so that an id tells that it is one
FIRST_IMAGE_ID = _MARK << _NUMBER_BITS


def image_token_id(digest: bytes, number: int) -> int:
    """The id of an image's token. digest: SHA-256 of all that its features come from."""
    return (_MARK | int.from_bytes(digest)) << _NUMBER_BITS | number


def image_token(token_id: int) -> tuple[bytes, int]:
    """Digest and number of the token that has such an id."""
    digest = (token_id >> _NUMBER_BITS) - _MARK
    return digest.to_bytes(DIGEST_BYTES), token_id & (MAX_IMAGE_TOKENS - 1)


class EncodedImage(Protocol):
    """digest: see `image_token_id`. rows, columns: of its tokens, for positions. num_tokens: L.

    features: float32 (L, `ImagesPart.row_size`), made when they are first read. May raise ImageError or ProviderError.
    """

    digest: bytes
    rows: int
    columns: int

    @property
    def num_tokens(self) -> int: ...

    @property
    def features(self) -> Float32Array: ...

    def load(self, may_run: Callable[[], bool]) -> bool:
        """Have features, and return whether they are here. may_run: whether a tower may."""
        ...

    def drop(self) -> None:
        """Hold features no more; they may be read again."""
        ...


class OwnIds(list[int]):
    """A request's text, whose image tokens have ids of their own. texts: the same without them, as it grows."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        super().__init__(token_ids)
        self.texts = [token_id for token_id in token_ids if token_id < FIRST_IMAGE_ID]

    def append(self, token_id: int) -> None:
        super().append(token_id)
        self.texts.append(token_id)


class PromptImages:
    """Where a prompt has its images, and what passes over it read of them.

    token_ids: the prompt with ids of their own. shift: what a row's number is moved by behind the prompt, to give its
    rotary position: with three axes an image takes as many positions as it has rows or columns, whichever are more
    (Qwen2-VL, Wang et al., 2024). on_wait: called while features that a pass reads are made; what it raises ends that.
    """

    def __init__(self, prompt_token_ids: Sequence[int], images: Sequence[EncodedImage], about: ImagesPart) -> None:
        """prompt_token_ids: those that a vocabulary has, with the image's one at each token of an image.

        Raises PromptError where the tokens are not as many as the images have, or where no text follows.
        """
        ids = np.array(prompt_token_ids, np.int64)
        places = np.flatnonzero(ids == about.token_id)
        num_wanted = sum(image.num_tokens for image in images)
        if len(places) != num_wanted:
            raise PromptError(
                f"The prompt has {len(places)} tokens of images, but its images have {num_wanted}: leave out of the "
                "texts what stands for an image."
            )
        if len(places) and places[-1] == len(ids) - 1:
            raise PromptError("The prompt ends with an image: say behind it what is to be answered.")
        own = [image_token_id(image.digest, number) for image in images for number in range(image.num_tokens)]
        token_ids = list(map(int, prompt_token_ids))
        for place, token_id in zip(places.tolist(), own, strict=True):
            token_ids[place] = token_id
        self.token_ids = OwnIds(token_ids)
        self._token_id = about.token_id
        self._index: Int64Array = np.full(len(ids), -1, np.int64)
        self._index[places] = np.arange(len(places))
        self._images = images
        self.on_wait: Callable[[], object] = lambda: None
        self._width = about.row_size
        self._positions = np.tile(np.arange(len(ids)), (3, 1))
        if about.position_axes == 3:
            _move_positions(self._positions, places, images)
        self._starts, self._ends = self._seen_whole(places, images, about)
        self.shift = int(self._positions[0, -1]) - len(ids) + 1

    def _seen_whole(
        self, places: Int64Array, images: Sequence[EncodedImage], about: ImagesPart
    ) -> tuple[Int64Array, Int64Array]:
        """Where images begin and end that see all of themselves."""
        if about.sees_whole_image == "none":
            return places[:0], places[:0]
        ends = np.cumsum([image.num_tokens for image in images])
        return places[ends - [image.num_tokens for image in images]], places[ends - 1] + 1

    def chunk_end(self, start: int, end: int) -> int:
        """Where a chunk ends that is to end here: before an image that would see less than itself, or behind it."""
        image_start, image_end = self._around(end)
        return image_start if image_start > start else image_end

    def usable(self, length: int) -> int:
        """How many of so many tokens, whose rows are known, can be gone on from."""
        return self._around(length)[0]

    def _around(self, place: int) -> tuple[int, int]:
        """Where the image begins and ends that sees all of itself around a place; the place itself where none does."""
        found = np.flatnonzero((self._starts < place) & (place < self._ends))
        return (int(self._starts[found[0]]), int(self._ends[found[0]])) if len(found) else (place, place)

    def graph_ids(self, token_ids: Sequence[int]) -> list[int]:
        """Ids that the graph takes in place of these."""
        return [self._token_id if token_id >= FIRST_IMAGE_ID else token_id for token_id in token_ids]

    def num_before(self, end: int) -> int:
        """How many of the text's first tokens, so many, are of images."""
        return int(np.count_nonzero(self._index[:end] >= 0))

    @property
    def end(self) -> int:
        """Where the text behind the last image begins: another question about it goes on from there."""
        return self.text_start(0, len(self._index))

    def text_start(self, start: int, end: int) -> int:
        """Where the text behind the last image begins, of the tokens from start to end."""
        places = np.flatnonzero(self._index[start:end] >= 0)
        return start + int(places[-1]) + 1 if len(places) else start

    def rows(self, start: int, end: int) -> ImageRows:
        """What a pass over the text's tokens from start to end reads, be they of the prompt or of its answer."""
        index, positions = self._index[start:end], self._positions[:, start:end]
        num_further = end - start - len(index)
        if num_further:
            index = np.concatenate([index, np.full(num_further, -1, np.int64)])
            further = np.arange(end - num_further, end) + self.shift
            positions = np.concatenate([positions, np.tile(further, (3, 1))], 1)
        named = index[index >= 0]
        if not len(named):
            return ImageRows(index, np.zeros((1, self._width), np.float32), positions)
        features = self._features(int(named[0]), int(named[-1]) + 1)
        is_here = (self._starts >= start) & (self._ends <= end)
        spans = np.stack([self._starts, self._ends], 1)[is_here] - start
        seen_whole = [(first, last) for first, last in spans.tolist()]
        return ImageRows(np.where(index >= 0, index - named[0], -1), features, positions, seen_whole)

    def load(self, may_run: Callable[[], bool]) -> bool:
        """Have all features, or else none; returns which. Arguments and errors: see `EncodedImage`."""
        is_whole = all(image.load(may_run) for image in self._images)
        if not is_whole:
            self.drop()
        return is_whole

    def drop(self) -> None:
        """Hold no features: the prompt is read, or waits on."""
        for image in self._images:
            image.drop()

    def _waits(self) -> bool:
        self.on_wait()
        return True

    def _features(self, first: int, last: int) -> Float32Array:
        """Those of the prompt's image tokens from number first to last."""
        parts, start = [], 0
        for image in self._images:
            end = start + image.num_tokens
            if start < last and first < end:
                image.load(self._waits)
                parts.append(image.features[max(first - start, 0) : last - start])
            start = end
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _move_positions(positions: Int64Array, places: Int64Array, images: Sequence[EncodedImage]) -> None:
    """Give an image's tokens positions of time, row and column, and the text behind it those that follow them."""
    first = 0
    for image in images:
        size = image.num_tokens
        begin, end = int(places[first]), int(places[first + size - 1]) + 1
        start = int(positions[0, begin])
        number = np.arange(size)
        positions[:, begin:end] = start + np.stack([0 * number, number // image.columns, number % image.columns])
        positions[:, end:] = start + max(image.rows, image.columns) + np.arange(positions.shape[1] - end)
        first += size

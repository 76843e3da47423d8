"""The factors of all adapters that are loaded, as passes read them: a row for each, of all products one behind another.

The order in a row is that of native/src/adapters/low_rank_rows.h: of each part of a product its `down` (r, K) in runs
of inputs, then the transpose of its `up` (J, r) in panels of outputs, rank by rank in each, padded with noughts.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from reader_edge_runtime.arrays import Array, Float32Array
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.machine.process_memory import free_bytes
from reader_edge_runtime.package.package_parts import PANEL, STEP, LowRankProduct

_RUN = 1024  # inputs
_ALIGNMENT = 64  # bytes: vectors cross no line of a cache


class Factors(NamedTuple):
    """What an adapter adds to a matrix (J, K), outputs first: up (J, r) times down (r, K), with its scale in `up`."""

    up: Float32Array
    down: Float32Array


class _Blocks(NamedTuple):
    """Columns of a matrix of ranks, a number of blocks of `size` of them, and where they begin in a row of rank one."""

    start: int
    number: int
    size: int

    @property
    def width(self) -> int:
        return self.number * self.size

    def of(self, row: Array, rank: int) -> Array:
        """Their numbers in a row: (number, rank, size)."""
        start = rank * self.start
        return row[start : start + rank * self.width].reshape(self.number, rank, self.size)


class _Part(NamedTuple):
    """Of a part of a product: (J, K), and where its factors are."""

    shape: tuple[int, int]
    down: list[_Blocks]
    up: list[_Blocks]


class AdapterTable:
    """Changes between passes alone; the session that reads it stays.

    values: (A, S), S growing with the largest rank. Rows that no adapter has are noughts.
    """

    def __init__(self, products: Sequence[LowRankProduct], dtype: str = "float32") -> None:
        """products: `Manifest.adapted_products`, () of a package that takes no adapters. dtype: `adapter_dtype`.

        Half as many bytes are read sooner, and factors in fp16 lose less than rounded weights do.
        """
        self._dtype = np.dtype(dtype)
        self._parts: dict[str, list[_Part]] = {}
        end = 0
        for product in products:
            for part in product.parts:
                down, end = _placed(end, product.num_inputs, _RUN, STEP)
                up, end = _placed(end, part.num_outputs, PANEL, PANEL)
                shape = part.num_outputs, product.num_inputs
                self._parts.setdefault(part.name, []).append(_Part(shape, down, up))
        self._size = max(end, 1)  # of a row, for each rank
        self._is_taken: list[bool] = []
        self.values = self._noughts(0, self._size)

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self.values.nbytes

    def add(self, adapter: Mapping[str, Factors]) -> int:
        """Load one that is given by the names of modules; returns its id, the first that is free.

        Raises ConfigError where a module takes none or has another shape, or memory is short; nothing has changed then.
        """
        stored = {name: self._stored(name, factors) for name, factors in adapter.items()}
        free = [*(number for number, is_taken in enumerate(self._is_taken) if not is_taken), len(self._is_taken)]
        rank = max((factors.up.shape[1] for factors in stored.values()), default=1)
        self._reserve(max(len(self.values), free[0] + 1), rank)
        row, ranks = self.values[free[0]], self.values.shape[1] // self._size
        for name, (up, down) in stored.items():
            for part in self._parts[name]:
                _write(part.down, row, ranks, down)
                _write(part.up, row, ranks, up.T)
        self._is_taken[free[0] : free[0] + 1] = [True]
        return free[0]

    def drop(self, adapter_id: int) -> None:
        """Forget one that no request has any more. Its id is free for another."""
        self._is_taken[adapter_id] = False
        self.values[adapter_id] = 0

    def _stored(self, name: str, factors: Factors) -> Factors:
        """As the table has them. Raises ConfigError unless they are those of a module that takes any."""
        if name not in self._parts:
            raise ConfigError(f"{name:.100} takes no adapter in this package: load one that leaves it as it is.")
        (num_outputs, num_inputs), (up, down) = self._parts[name][0].shape, factors
        rank = up.shape[-1]
        if up.shape != (num_outputs, rank) or down.shape != (rank, num_inputs):
            raise ConfigError(
                f"The factors of {name:.100} have the shapes {up.shape} and {down.shape}, and its matrix has "
                f"{(num_outputs, num_inputs)}: load an adapter of this model."
            )
        if self._dtype == np.float32:
            return factors
        with np.errstate(over="ignore"):
            halves = [each.astype(self._dtype) for each in _balanced(factors)]
        if not all(np.isfinite(each).all() for each in halves):
            raise ConfigError(f"The factors of {name:.100} are too large for fp16: load another adapter.")
        return Factors(*halves)

    def _noughts(self, num_rows: int, size: int) -> Array:
        """(num_rows, size), at a line of the cache."""
        line = _ALIGNMENT // self._dtype.itemsize
        numbers = np.zeros(num_rows * size + line, self._dtype)
        start = -(numbers.ctypes.data // self._dtype.itemsize) % line
        return numbers[start : start + num_rows * size].reshape(num_rows, size)

    def _reserve(self, num_rows: int, rank: int) -> None:
        """Make room for so many adapters of such a rank."""
        num_old, old = len(self.values), self.values.shape[1] // self._size
        rank = max(rank, old)
        if (num_rows, rank) == (num_old, old):
            return
        wanted, free = num_rows * rank * self._size * self._dtype.itemsize, free_bytes()
        try:
            if free is not None and wanted > free:  # noughts take none before they are written
                raise MemoryError
            values = self._noughts(num_rows, rank * self._size)
        except MemoryError:
            raise ConfigError(f"Adapters take {wanted / 1e9:.1f} GB of memory, which is short: load fewer.") from None
        if rank == old:  # in one copy: others wait for it
            values[:num_old] = self.values
        else:
            self._copy(values, old, rank)
        self.values = values

    def _copy(self, values: Array, old: int, rank: int) -> None:
        """Put what there is, in rows of the old rank, into those of another."""
        for before, after in zip(self.values, values, strict=False):
            for part in chain.from_iterable(self._parts.values()):
                for blocks in (*part.down, *part.up):
                    blocks.of(after, rank)[:, :old] = blocks.of(before, old)


def _placed(start: int, width: int, block: int, step: int) -> tuple[list[_Blocks], int]:
    """Blocks of so many columns, the last of them shorter and filled up to a step; where they end."""
    count, rest = divmod(width, block)
    blocks = [_Blocks(start, count, block), _Blocks(start + count * block, 1, -(-rest // step) * step)]
    return [each for each in blocks if each.width], blocks[-1].start + blocks[-1].width


def _write(places: Sequence[_Blocks], row: Array, ranks: int, matrix: Array) -> None:
    """matrix: (r, width)."""
    rank, begin = len(matrix), 0
    for blocks in places:
        columns = matrix[:, begin : begin + blocks.width]
        if columns.shape[1] < blocks.width:
            columns = np.pad(columns, ((0, 0), (0, blocks.width - columns.shape[1])))
        blocks.of(row, ranks)[:, :rank] = columns.reshape(rank, blocks.number, blocks.size).swapaxes(0, 1)
        begin += blocks.width


def _balanced(factors: Factors) -> Factors:
    """The same product, with powers of two moved between factors: each rank has magnitudes alike in both, far from
    the smallest and the largest of fp16."""
    up, down = factors
    exponents = [np.frexp(np.abs(each).max(axis=axis, initial=0.0))[1] for each, axis in ((up, 0), (down, 1))]
    shift = (exponents[1] - exponents[0]) // 2
    return Factors(np.ldexp(up, shift), np.ldexp(down, -shift[:, None]))

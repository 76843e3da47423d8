"""The passes that a check runs on a package, listed beforehand, so that they can run a part of the model at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar, cast

from reader_edge_export.progress import Advance, unseen
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Pass, Target

_GARBAGE = 3.3

CacheType = TypeVar("CacheType", bound=Cache)
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class PassChain:
    """Passes over one KV cache, in turn, behind the prompts of its slots. None depends on what another one says.

    prompts: token ids of each slot, or none. keeps_rows: each pass is a chain of tokens that the next ones follow.
    has_garbage: unused rows of the cache, a `HostCache`, hold anything but zeros.
    """

    prompts: Sequence[Sequence[int]]
    passes: Sequence[Pass]
    keeps_rows: bool = False
    has_garbage: bool = False

    @classmethod
    def of_text(cls, prompt: Sequence[int], token_ids: Sequence[int], num_a_pass: int) -> "PassChain":
        """Logits after each of N tokens that follow a prompt, so many tokens a pass."""
        chunks = [token_ids[start : start + num_a_pass] for start in range(0, len(token_ids), num_a_pass)]
        passes = [Pass(0, [DraftTree.chain(list(chunk))], [range(len(chunk))], wants_logits=True) for chunk in chunks]
        return cls([prompt], passes, keeps_rows=True)

    @property
    def num_prompts(self) -> int:
        """Prompts that take a pass."""
        return sum(map(bool, self.prompts))

    @property
    def num_tokens(self) -> int:
        """Tokens of all passes, those of prompts included."""
        return sum(map(len, self.prompts)) + sum(map(num_tokens_of, self.passes))

    def run(
        self, new_cache: Callable[[int, int], CacheType], forward: Callable[[CacheType, Pass], Made]
    ) -> Iterator[Made]:
        """What `forward` makes of each pass, those of prompts before all others."""
        widths = [max(map(len, each.trees)) for each in self.passes]
        num_rows = max(map(len, self.prompts)) + (sum(widths) if self.keeps_rows else max(widths))
        cache = new_cache(len(self.prompts), num_rows)
        if self.has_garbage:
            for slab in cast(HostCache, cache).slabs:
                slab.memory[...] = _GARBAGE
        for slot, prompt in enumerate(self.prompts):
            if prompt:
                tree = DraftTree.chain(list(prompt))
                yield forward(cache, Pass(slot, [tree], [[len(prompt) - 1]], num_kept=len(prompt)))
                cache.commit(slot, range(len(prompt)))
        for width, wanted in zip(widths, self.passes, strict=True):
            yield forward(cache, wanted._replace(num_kept=width) if self.keeps_rows else wanted)
            if self.keeps_rows:
                cache.commit(wanted.first_slot, range(width))


def num_tokens_of(wanted: Pass) -> int:
    """Tokens of a pass, nodes of all its trees."""
    return sum(map(len, wanted.trees))


class PackageRunner(Protocol):
    """Whatever runs a package's passes."""

    manifest: Manifest

    def results(self, chains: Sequence[PassChain], advance: Advance = unseen) -> Iterator[ForwardResult]:
        """What each pass of each chain says, in turn, but for those of prompts; valid until the next one.

        advance: gets the tokens of passes as they are done.
        """
        ...


class WholePackage:
    """A `PackageRunner` over a loaded target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.manifest = target.manifest

    def results(self, chains: Sequence[PassChain], advance: Advance = unseen) -> Iterator[ForwardResult]:
        def forward(cache: Cache, wanted: Pass) -> ForwardResult:
            result = self._target.forward(cache, wanted)
            advance(num_tokens_of(wanted))
            return result

        for chain in chains:
            yield from islice(chain.run(self._target.new_cache, forward), chain.num_prompts, None)


class Check(Protocol):
    """One comparison of a package with what it should be."""

    @property
    def chains(self) -> Sequence[PassChain]:
        """What it asks of the package."""
        ...

    def figures(self, results: Iterator[ForwardResult]) -> dict[str, float]:
        """For the manifest, of results of which it takes as many as its chains have passes. Raises ParityError."""
        ...


def chains_of(checks: Sequence[Check]) -> list[PassChain]:
    """What all checks ask, in turn."""
    return [chain for check in checks for chain in check.chains]


def figures_of(package: PackageRunner, checks: Sequence[Check], advance: Advance = unseen) -> dict[str, float]:
    """Figures of all checks, whose passes go through the package together. advance: gets their tokens."""
    results = package.results(chains_of(checks), advance)
    figures: dict[str, float] = {}
    for check in checks:
        figures |= check.figures(results)
    return figures

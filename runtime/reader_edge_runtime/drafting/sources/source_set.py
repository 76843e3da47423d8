"""All further sources of a drafter, asked together; a source's fault ends only the requests it concerns."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from reader_edge_runtime.draft_tree import ScoredTree
from reader_edge_runtime.drafting.drafter import DraftWish, RequestDrafter
from reader_edge_runtime.drafting.sources.source import Arrays, Proposal, Source
from reader_edge_runtime.errors import ConfigError, DraftError

MAX_SOURCES = 2


class RequestSources:
    """What each source holds of one request. fault: of its `begin` or `observe`, with which the request ends."""

    def __init__(self, sources: Sequence[Source], token_ids: Sequence[int]) -> None:
        self.fault: DraftError | None = None
        self.states: list[RequestDrafter] = []
        self._names = [source.name for source in sources]
        for source in sources:
            try:
                self.states.append(source.begin(token_ids))
            except Exception as error:  # a source is foreign code: whatever it raises is its request's end
                self.fault = _fault(source.name, error)
                break

    def observe(self, scored: Sequence[ScoredTree]) -> None:
        """Hand on what the target said, in order."""
        for name, state in zip(self._names, self.states, strict=False):
            for each in scored:
                if self.fault is not None:
                    return
                try:
                    state.observe(each)
                except Exception as error:
                    self.fault = _fault(name, error)

    def finish(self) -> None:
        """The answer is there: a fault from now on is only worth a warning."""
        for name, state in zip(self._names, self.states, strict=False):
            try:
                state.finish()
            except Exception as error:
                warnings.warn(str(_fault(name, error)), stacklevel=2)


class SourceSet:
    """Sources beside those that are compiled in; at most MAX_SOURCES. names: theirs, in order."""

    def __init__(self, sources: Sequence[Source]) -> None:
        if len(sources) > MAX_SOURCES:
            raise ConfigError(f"At most {MAX_SOURCES} further sources can be mixed, got {len(sources)}.")
        self.names = tuple(source.name for source in sources)
        self.wants_hidden_states = any(source.wants_hidden_states for source in sources)
        self._sources = tuple(sources)

    def begin(self, token_ids: Sequence[int]) -> RequestSources:
        return RequestSources(self._sources, token_ids)

    def propose(
        self, requests: Sequence[RequestSources], wishes: Sequence[DraftWish]
    ) -> list[list[Proposal] | DraftError]:
        """For each request, what each source proposes; or the fault that ends it."""
        proposals: list[list[Proposal]] = [[] for _ in requests]
        faults = {b: request.fault for b, request in enumerate(requests) if request.fault is not None}
        for i, source in enumerate(self._sources):
            asked = [b for b in range(len(requests)) if b not in faults]
            own = [DraftWish(requests[b].states[i], wishes[b].max_nodes, wishes[b].max_depth) for b in asked]
            for b, answer in zip(asked, _ask(source, own), strict=True):
                if isinstance(answer, DraftError):
                    faults[b] = answer
                else:
                    proposals[b].append(answer)
        return [faults.get(b, each) for b, each in enumerate(proposals)]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What all of them have learned; names begin with the source's. Raises DraftError."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for source in self._sources:
            try:
                arrays.update({f"{source.name}/{name}": array for name, array in source.state().items()})
            except Exception as error:
                raise _fault(source.name, error) from error
        return arrays

    def restore(self, arrays: Arrays) -> None:
        """Let each take up its part of what `state` gave; without one it starts anew. Raises DraftError."""
        for source in self._sources:
            prefix = f"{source.name}/"
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            try:
                source.restore(own)
            except Exception as error:
                raise _fault(source.name, error) from error


def _ask(source: Source, wishes: Sequence[DraftWish]) -> list[Proposal | DraftError]:
    """A proposal for each wish; where the batch fails each is asked alone, so that only those at fault end."""
    if not wishes:
        return []
    try:
        proposals = list(source.propose(wishes))
        if len(proposals) != len(wishes):
            raise DraftError(f"Source {source.name!r} gave {len(proposals)} proposals for {len(wishes)} requests.")
    except Exception as error:
        if len(wishes) > 1:
            return [answer for wish in wishes for answer in _ask(source, [wish])]
        return [_fault(source.name, error)]
    return [_checked(proposal, source.name) for proposal in proposals]


def _checked(proposal: Proposal, name: str) -> Proposal | DraftError:
    try:
        proposal.check(name)
    except Exception as error:
        return _fault(name, error)
    return proposal


def _fault(name: str, error: Exception) -> DraftError:
    if isinstance(error, DraftError):
        return error
    fault = DraftError(f"Source {name!r} failed with {type(error).__name__}: {error}.")
    fault.__cause__ = error
    return fault

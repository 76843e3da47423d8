"""All further sources of a drafter, called together; a source's fault ends only the requests it concerns."""

import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy.typing as npt

from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.kernels import layout
from reader_edge_runtime.drafting.proposals import check_proposal
from reader_edge_runtime.drafting.sources.source import Arrays, DraftSource
from reader_edge_runtime.errors import ConfigError, DraftError

MAX_SOURCES = layout.NUM_PROPOSALS

_Foreign = TypeVar("_Foreign")
_Result = TypeVar("_Result")


class RequestSources:
    """What each source holds of one request. fault: of its `begin` or `observe`, with which the request ends.

    proposal_s: seconds that costly sources took for its last draft. costly: these, by number.
    """

    def __init__(self, sources: Sequence[DraftSource], context: RequestContext) -> None:
        self.fault: DraftError | None = None
        self.proposal_s = 0.0
        self.costly: list[int] = []
        self.states: list[RequestDrafter | None] = []
        self._names = [source.name for source in sources]
        for source in sources:
            if context.has_images and source.wants_layer_states:  # those of images are of no text
                self.states.append(None)
                continue
            state = _tried(source.name, lambda source: source.begin(context), source)
            if isinstance(state, DraftError):
                self.fault = state
                break
            self.states.append(state)

    @property
    def costly_names(self) -> list[str]:
        return [self._names[number] for number in self.costly]

    def observe(self, scored: Sequence[ScoredTree]) -> None:
        """Hand on the target's scores, in order."""
        for name, state in self._begun():
            self.fault = self.fault or _tried(name, lambda state: _observe(state, scored), state)

    def finish(self) -> None:
        """The answer is there: a fault from now on is only worth a warning."""
        for name, state in self._begun():
            fault = _tried(name, lambda state: state.finish(), state)
            if fault is not None:
                warnings.warn(str(fault), stacklevel=2)

    def _begun(self) -> list[tuple[str, RequestDrafter]]:
        """Names and states of those that have something to say of the request."""
        return [(name, state) for name, state in zip(self._names, self.states, strict=False) if state is not None]


class SourceSet:
    """Sources beside those that are compiled in, at most MAX_SOURCES. names: theirs, in order. Raises ConfigError."""

    def __init__(self, sources: Sequence[DraftSource]) -> None:
        self._sources = tuple(sources)
        self.names = tuple(source.name for source in sources)
        if len(sources) > MAX_SOURCES:
            raise ConfigError(
                f"At most {MAX_SOURCES} sources can be mixed beside those compiled in, got {', '.join(self.names)}."
            )
        for i, name in enumerate(self.names):
            if name in self.names[:i] or name in layout.SOURCES:
                raise ConfigError(f"There are two sources named {name!r}: give each a name of its own.")
        self.wants_hidden_states = any(source.wants_hidden_states for source in sources)
        self.wants_layer_states = any(source.wants_layer_states for source in sources)

    def wait(self) -> None:
        for source in self._sources:
            source.wait()

    def begin(self, context: RequestContext) -> RequestSources:
        return RequestSources(self._sources, context)

    def propose(
        self,
        requests: Sequence[RequestSources],
        draft_requests: Sequence[DraftRequest],
        top_probability: Callable[[int, Sequence[DraftTree | None]], float],
        preview: Callable[[int, Sequence[DraftTree | None]], DraftTree],
    ) -> list[list[DraftTree | None] | DraftError]:
        """For each request, what each source proposes; or the fault that ends it.

        top_probability: tells of a request, by number, and of what was proposed for it so far, how sure the compiled
            sources are of the likeliest next token with that. preview: tells in the same way what would be drafted.
        """
        proposals: list[list[DraftTree | None]] = [[] for _ in requests]
        for request in requests:
            request.proposal_s, request.costly = 0.0, []
        faults = {b: request.fault for b, request in enumerate(requests) if request.fault is not None}
        for i, source in enumerate(self._sources):
            called = {}
            for b, (request, draft_request) in enumerate(zip(requests, draft_requests, strict=True)):
                if b not in faults and (state := request.states[i]) is not None:
                    drafted = partial(_previewed, preview, b, proposals[b])
                    called[b] = draft_request._replace(request=state, preview=drafted)
            if source.is_costly:
                verdicts = {
                    b: _is_worth_asking(source, draft_request, top_probability(b, proposals[b]))
                    for b, draft_request in called.items()
                }
                faults |= {b: verdict for b, verdict in verdicts.items() if isinstance(verdict, DraftError)}
                called = {b: draft_request for b, draft_request in called.items() if verdicts[b] is True}
            began = time.perf_counter()
            answers = dict(zip(called, _ask(source, list(called.values())), strict=True))
            for b in called if source.is_costly else ():
                requests[b].proposal_s += (time.perf_counter() - began) / len(called)
                requests[b].costly.append(i)
            faults |= {b: answer for b, answer in answers.items() if isinstance(answer, DraftError)}
            for b, proposed in enumerate(proposals):
                answer = answers.get(b)
                proposed.append(None if isinstance(answer, DraftError) else answer)
        return [faults.get(b, each) for b, each in enumerate(proposals)]

    def wanting_gain(self, request: RequestSources) -> DraftSource | None:
        """The costly source that alone was called for a request's last draft, if it learns from what that brought."""
        source = self._sources[request.costly[0]] if len(request.costly) == 1 else None
        return source if source is not None and source.wants_gain else None

    def learn_gain(self, request: RequestSources, num_gained: int) -> None:
        """Report to that source what asking it brought."""
        source = self.wanting_gain(request)
        state = request.states[request.costly[0]] if source is not None else None
        if source is not None and state is not None:
            fault = _tried(source.name, lambda source: source.learn_gain(state, num_gained, request.proposal_s), source)
            request.fault = request.fault or fault

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What all of them have learned; names begin with the source's. Raises DraftError."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for source in self._sources:
            with _explained(source.name):
                arrays.update({f"{source.name}/{name}": array for name, array in source.state().items()})
        return arrays

    def restore(self, arrays: Arrays) -> None:
        """Let each take up its part of what `state` gave; without one it starts over. Raises DraftError."""
        for source in self._sources:
            prefix = f"{source.name}/"
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            with _explained(source.name):
                source.restore(own)


def _previewed(
    preview: Callable[[int, Sequence[DraftTree | None]], DraftTree],
    b: int,
    proposed: Sequence[DraftTree | None],
    tree: DraftTree,
) -> DraftTree:
    return preview(b, [*proposed, tree])


def _is_worth_asking(source: DraftSource, draft_request: DraftRequest, top_probability: float) -> bool | DraftError:
    return _tried(source.name, lambda source: bool(source.is_worth_asking(draft_request, top_probability)), source)


def _observe(state: RequestDrafter, scored: Sequence[ScoredTree]) -> None:
    for each in scored:
        state.observe(each)


def _ask(source: DraftSource, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | DraftError | None]:
    """A proposal for each request; where the batch fails each is called alone, so that only those at fault end."""
    if not draft_requests:
        return []
    proposals = _tried(source.name, lambda source: _proposals(source, draft_requests), source)
    if not isinstance(proposals, DraftError):
        return [
            _checked(source.name, tree, draft_request)
            for tree, draft_request in zip(proposals, draft_requests, strict=True)
        ]
    if len(draft_requests) == 1:
        return [proposals]
    return [answer for draft_request in draft_requests for answer in _ask(source, [draft_request])]


def _checked(name: str, tree: DraftTree | None, draft_request: DraftRequest) -> DraftTree | DraftError | None:
    """A proposal, or its fault; a tree of a root alone is none."""
    if tree is None:
        return None
    fault = _tried(name, lambda tree: check_proposal(tree, draft_request.request.token_ids[-1], name), tree)
    return fault or (tree if len(tree) > 1 else None)


def _proposals(source: DraftSource, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | None]:
    proposals = list(source.propose(draft_requests))
    if len(proposals) != len(draft_requests):
        raise DraftError(f"Source {source.name!r} gave {len(proposals)} proposals for {len(draft_requests)} requests.")
    return proposals


def _tried(name: str, call: Callable[[_Foreign], _Result], foreign: _Foreign) -> _Result | DraftError:
    """What a call into a source gives, or its fault."""
    try:
        with _explained(name):
            return call(foreign)
    except DraftError as fault:
        # Kept as a note: frames would keep all callers alive, and the engine, for as long as somebody has the fault.
        fault.add_note(traceback.format_exc())
        link: BaseException | None = fault
        while link is not None:
            link.__traceback__ = None
            link = link.__cause__ or link.__context__
        return fault


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn what a source raises into a DraftError: it is foreign code, which may raise anything."""
    try:
        yield
    except DraftError:
        raise
    except Exception as error:
        raise DraftError(f"Source {name!r} failed with {type(error).__name__}: {error}.") from error

"""One of a server's models, and its engine while it is loaded."""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from reader_edge.server.draft_endpoint import DraftEndpoint
from reader_edge.server.endpoint import Endpoint
from reader_edge_runtime import AsyncEngine
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.tokenizer import Tokenizer

State = Literal["loaded", "loading", "unloaded"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """An engine, what answers by it at each path, and to devices."""

    engine: AsyncEngine
    endpoints: Mapping[str, Endpoint[Any]]
    drafts: DraftEndpoint

    @property
    def is_answering(self) -> bool:
        """Whether it has requests, or answers of devices that are away."""
        return self.engine.num_running + self.engine.num_waiting + len(self.drafts.answers) > 0


@dataclass(eq=False, slots=True)
class ServedModel:
    """load: its engine, which takes a while. loaded: None while it is not. num_leases: requests that have it.

    is_leaving: whether it gets no further requests, so that it can be unloaded. waiters: requests that wait for it.
    keep_s: how long it stays behind its last request, which was at used_s. own_adapters: names of those that it is
    loaded with.
    """

    name: str
    package: ModelPackage
    load: Callable[[], AsyncEngine]
    loaded: LoadedModel | None = None
    loading: "asyncio.Future[None] | None" = None
    num_leases: int = 0
    is_leaving: bool = False
    waiters: list["asyncio.Future[LoadedModel]"] = field(default_factory=list)
    keep_s: float = math.inf
    used_s: float = -math.inf
    expiry: asyncio.TimerHandle | None = None
    text: Tokenizer | None = None
    own_adapters: Sequence[str] = ()

    @property
    def state(self) -> State:
        return "loaded" if self.loaded is not None else "loading" if self.loading is not None else "unloaded"

    @property
    def adapters(self) -> Collection[str]:
        """Names of the adapters that it has, or is loaded with."""
        return self.own_adapters if self.loaded is None else self.loaded.engine.engine.adapters

    @property
    def is_busy(self) -> bool:
        """Whether requests keep it from being unloaded."""
        return self.num_leases > 0 or (self.loaded is not None and self.loaded.is_answering)

    @property
    def tokenizer(self) -> Tokenizer:
        """Of its package, also where it is not loaded: then it is opened, which may take a second."""
        if self.loaded is not None:
            return self.loaded.engine.engine.tokenizer
        self.text = self.text or Tokenizer.open(self.package)
        return self.text

    @property
    def sampling(self) -> Mapping[str, float]:
        """As of an engine."""
        return self.package.manifest.sampling if self.loaded is None else self.loaded.engine.engine.sampling

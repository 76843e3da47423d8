"""The models of a server: loaded when a request asks for one, unloaded for others, or after a while without any."""

import asyncio
import ctypes
import logging
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from reader_edge.server.api_error import ApiError, no_model
from reader_edge.server.draft_endpoint import DraftEndpoint
from reader_edge.server.endpoints import make_endpoints
from reader_edge.server.metrics import Metrics
from reader_edge.server.openai.response_store import ResponseStore
from reader_edge.server.request_log import public_sentence
from reader_edge.server.served_model import LoadedModel, ServedModel
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from reader_edge_runtime.errors import BusyError, ClosedError, ConfigError, ReaderEdgeError

_TICK_S, _AWAY_S = 0.05, 1.0  # between looks at a model that is to be unloaded
_LOG = logging.getLogger(__name__)


class ModelPool:
    """All models of a server, in their order.

    settings: of each, but for its name. max_bytes: of loaded ones together; 0 is no limit. idle_s: how long one stays
    without requests, where none says otherwise. kv_bytes: what each one's KV cache may take; 0 counts what it holds.
    max_waiters: requests that may wait for a model.
    is_fixed: whether the only model is loaded and stays. Methods are of one event loop.

    Raises ConfigError for two models of one name, and for one that takes more than there may be.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        settings: ServerSettings,
        max_bytes: int = 0,
        idle_s: float = math.inf,
        kv_bytes: int = 0,
        max_waiters: int = 72,
        is_fixed: bool = False,
    ) -> None:
        self.models = tuple(models)
        self.metrics = Metrics(num_waiters=lambda: sum(len(model.waiters) for model in self.models))
        self.responses = ResponseStore(settings.max_kept_responses)
        self.is_fixed = is_fixed
        self._settings = settings
        self._max_bytes = max_bytes
        self._idle_s = idle_s
        self._kv_bytes = kv_bytes
        self._max_waiters = max_waiters
        self._turn = asyncio.Lock()
        self._is_closed = False
        self._tasks: set[asyncio.Future[None]] = set()
        names = [model.name for model in models]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"Two models are called {twice!r}: rename one's folder, or leave one out.")
        for model in models:
            if max_bytes and self.num_bytes(model) > max_bytes:
                raise ConfigError(
                    f"{model.name!r} takes {self.num_bytes(model)} bytes, but --memory is {max_bytes}: raise it."
                )

    @classmethod
    def of(cls, engine: AsyncEngine, settings: ServerSettings) -> "ModelPool":
        """The pool of one model that is loaded and stays."""
        model = ServedModel(settings.model_name, engine.engine.package, lambda: engine)
        pool = cls([model], settings, is_fixed=True)
        pool.take_loaded(engine)
        return pool

    def take_loaded(self, engine: AsyncEngine) -> None:
        """Take the engine of the first model, which was loaded before an event loop runs."""
        self.first.loaded, self.first.keep_s = self._served(self.first, engine), self._idle_s

    def begin(self) -> None:
        """Have time go on for a model that was loaded before."""
        for model in self.models:
            if model.loaded is not None:
                self._keep(model)

    @property
    def first(self) -> ServedModel:
        return self.models[0]

    @property
    def names(self) -> list[str]:
        return [model.name for model in self.models]

    @property
    def num_running(self) -> int:
        return sum(each.engine.num_running for each in self._loaded())

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot, or for their model."""
        waiters = sum(len(model.waiters) for model in self.models)
        return waiters + sum(each.engine.num_waiting for each in self._loaded())

    def find(self, name: str) -> ServedModel:
        """The model that a client means. Raises ApiError, but where there is one alone, which refuses by itself."""
        if self.is_fixed:
            return self.first
        if not name:
            raise ApiError(400, f"'model' is missing: ask for {' or '.join(map(repr, self.names))}.", "model")
        meant = [model for model in self.models if self.settings_of(model).is_served(name)]
        exact = [model for model in meant if model.name in (name, name.removesuffix(":latest"))]
        if not meant:
            raise no_model(name, *(each for model in self.models for each in self.settings_of(model).names))
        return (exact or meant)[0]

    def settings_of(self, model: ServedModel) -> ServerSettings:
        """Those by which a model and its adapters are found."""
        return replace(self._settings, model_name=model.name, adapters=model.adapters)

    def num_bytes(self, model: ServedModel) -> int:
        """What a model takes: the files of its package, and what its KV cache may take or, without a limit, holds."""
        held = 0 if model.loaded is None else model.loaded.engine.engine.decoder.num_kv_bytes
        return model.package.manifest.num_bytes + (self._kv_bytes or held)

    def expires_s(self, model: ServedModel) -> float:
        """Seconds from now on after which a model is unloaded if nobody asks for it."""
        if model.is_busy or model.keep_s == math.inf:
            return model.keep_s
        return model.used_s + model.keep_s - time.monotonic()

    async def acquire(self, model: ServedModel) -> LoadedModel:
        """A model for one request, loaded if it is not; `release` ends that. Raises what keeps it from that, and
        BusyError.

        Requests that wait for a model get it in the order of coming, even if others ask for those that are loaded.
        """
        if self._is_closed:
            raise ClosedError("The server is shutting down.")
        if model.loaded is not None and not model.is_leaving:
            model.num_leases += 1
            return model.loaded
        if len(model.waiters) >= self._max_waiters:
            raise BusyError(f"{len(model.waiters)} requests wait for {model.name!r} already: try again later.")
        waiter: asyncio.Future[LoadedModel] = asyncio.get_running_loop().create_future()
        model.waiters.append(waiter)
        if model.loading is None:
            model.loading = asyncio.ensure_future(self._load(model))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(model)
            raise
        finally:
            if waiter in model.waiters:
                model.waiters.remove(waiter)

    def release(self, model: ServedModel, keep_s: float | None = None) -> None:
        """End what `acquire` began. keep_s: how long the model stays behind this request and later ones, unless they
        say; None does not."""
        model.num_leases -= 1
        if keep_s is not None:
            model.keep_s = keep_s
        self._keep(model)

    async def load(self, model: ServedModel) -> None:
        """Load a model that is not. Raises what `acquire` does."""
        await self.acquire(model)
        self.release(model)

    async def unload(self, model: ServedModel) -> None:
        """Unload a model, once it has no requests; those that come meanwhile wait until it is loaded again."""
        try:
            while model.loaded is not None:
                model.is_leaving = True
                async with self._turn:  # not held while its requests end, since others are to be loaded meanwhile
                    if not model.is_busy:
                        return await self._unload(model)
                await asyncio.sleep(_TICK_S)
        finally:
            model.is_leaving = False

    async def close(self, cancels: bool = False) -> None:
        """Take no more requests; wait for running ones, or cancel them."""
        self._is_closed = True
        for model in self.models:
            for waiter in model.waiters:
                if not waiter.done():
                    waiter.set_exception(ClosedError("The server is shutting down."))
            if model.expiry is not None:
                model.expiry.cancel()
        for each in list(self._loaded()):
            each.drafts.answers.close()
            await each.engine.close(cancels)

    def _loaded(self) -> Iterator[LoadedModel]:
        return (model.loaded for model in self.models if model.loaded is not None)

    def _served(self, model: ServedModel, engine: AsyncEngine) -> LoadedModel:
        settings = replace(
            self._settings, model_name=model.name, unloads=not self.is_fixed, adapters=engine.engine.adapters
        )
        self.metrics.add(engine, model.name)
        endpoints = make_endpoints(engine, settings, self.metrics, self.responses)
        settings = settings.for_images if engine.engine.package.manifest.images is not None else settings
        drafts = DraftEndpoint(engine, settings, self.metrics, partial(self._keep, model))
        return LoadedModel(engine, endpoints, drafts)

    async def _load(self, model: ServedModel) -> None:
        """Load a model in its turn, and hand it to those that wait for it, or what keeps it from being loaded."""
        failure: Exception | None = None
        try:
            while model.is_leaving:
                await asyncio.sleep(_TICK_S)
            async with self._turn:
                if model.loaded is None and any(not waiter.done() for waiter in model.waiters):
                    await self._make_room(model)
                    await self._open(model)
        except ReaderEdgeError as error:
            failure = error if isinstance(error, ClosedError) else not_loaded(model.name, error)
        except Exception as error:
            failure = error
        model.loading = None
        for waiter in model.waiters:
            if waiter.done():
                continue
            if failure is not None:
                waiter.set_exception(failure)
            elif model.loaded is not None:
                model.num_leases += 1
                waiter.set_result(model.loaded)

    async def _open(self, model: ServedModel) -> None:
        _LOG.info("Loading '%s'.", model.name)
        start = time.monotonic()
        engine = await asyncio.to_thread(model.load)
        if self._is_closed:
            await engine.close(cancels=True)
            raise ClosedError("The server is shutting down.")
        model.loaded, model.keep_s = self._served(model, engine), self._idle_s
        model.text = None
        self._keep(model)
        _LOG.info("Loaded '%s' in %.1f s.", model.name, time.monotonic() - start)

    async def _make_room(self, wanted: ServedModel) -> None:
        """Unload the models that were used the longest time ago, until another one fits beside the rest.

        Where all are in use, the first of them gets no further requests until its own have ended.
        """
        held: set[ServedModel] = set()  # and not those that were leaving for another reason
        try:
            while self._max_bytes:
                loaded = sorted((each for each in self.models if each.loaded), key=lambda each: each.used_s)
                if not loaded or sum(map(self.num_bytes, [*loaded, wanted])) <= self._max_bytes:
                    return
                if idle := next((each for each in loaded if not each.is_busy), None):
                    await self._unload(idle)
                else:
                    held |= set() if loaded[0].is_leaving else {loaded[0]}
                    loaded[0].is_leaving = True
                    await asyncio.sleep(_TICK_S)
        finally:
            for each in held:
                each.is_leaving = False

    async def _unload(self, model: ServedModel) -> None:
        loaded, model.loaded = model.loaded, None
        if loaded is None:
            return
        self.metrics.remove(loaded.engine, model.name)
        await loaded.drafts.close()
        await loaded.engine.close()
        await asyncio.to_thread(loaded.engine.engine.close)
        del loaded
        await asyncio.to_thread(_trim_heap)
        _LOG.info("Unloaded '%s'.", model.name)

    def _keep(self, model: ServedModel) -> None:
        """Have a model unloaded after a while, unless there are further requests."""
        if self.is_fixed:
            return
        model.used_s = time.monotonic()
        if model.expiry is not None:
            model.expiry.cancel()
        if model.keep_s < math.inf:
            model.expiry = asyncio.get_running_loop().call_later(model.keep_s, self._expire, model)

    def _expire(self, model: ServedModel) -> None:
        task = asyncio.ensure_future(self._unload_if_idle(model))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _unload_if_idle(self, model: ServedModel) -> None:
        async with self._turn:
            if model.used_s + model.keep_s > time.monotonic() or model.num_leases or model.waiters:
                return  # their end has a time of its own
            if not model.is_busy:
                await self._unload(model)
            else:  # devices' answers end without a word
                model.expiry = asyncio.get_running_loop().call_later(_AWAY_S, self._expire, model)


def not_loaded(name: str, error: ReaderEdgeError) -> ApiError:
    """What a model's clients get that cannot be loaded. Where its files lie is nothing to strangers."""
    _LOG.error("'%s' cannot be loaded: %s", name, error)
    return ApiError(500, f"{name!r} cannot be loaded: {public_sentence(error)}", "model", "model_not_loaded")


def _trim_heap() -> None:
    """Give freed memory back to the system: glibc keeps what threads of loaded models freed, more with each load."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)

"""Engines for Python programs, which load whatever names a model, as the command line does."""

import os
from functools import partial
from typing import Self, Unpack

import reader_edge_runtime
from reader_edge.models.model_source import loaded
from reader_edge.terminal.console import progress_for
from reader_edge_runtime import DraftConfig, DraftSources, EngineConfig, ServingConfig
from reader_edge_runtime.call_options import (
    NO_ADAPTERS,
    AdapterPaths,
    Callback,
    EngineOptions,
    engine_config,
    given_callback,
    given_config,
)
from reader_edge_runtime.decoding.rule_config import RuleConfig
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.errors import ReaderEdgeError
from reader_edge_runtime.untrusted.user_input import given_path


class Engine(reader_edge_runtime.Engine):
    """A model ready to answer.

        with Engine.load("smollm2:135m") as engine:
            print(engine.generate("# tar", max_tokens=100).text)

    width_report: what the width probe found at load; None if it did not run.
    draft_permission: whether requests are drafted, and why.

    Several threads may use one engine: their requests share its steps. One that is closed raises ClosedError.
    """

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str] | None = None,
        config: EngineConfig | None = None,
        draft: DraftConfig | None = None,
        sources: DraftSources | None = None,
        drafter: Drafter | None = None,
        on_progress: Callback | None = None,
        on_calibration: Callback | None = None,
        rule: RuleConfig | None = None,
        adapters: AdapterPaths = NO_ADAPTERS,
        **options: Unpack[EngineOptions],
    ) -> Self:
        """Find a model, have it fetched and exported where it is not yet, once, and load it.

        model: a name, as "smollm2:135m" or "OWNER/NAME" of the hub, a GGUF file, a folder in Hugging Face format, or
            a package. None: what $READER_EDGE_MODEL names, else the bundled demo.
        options: fields of the config by their names, as threads=2.
        draft, sources: limits of drafting, and what is drafted from; a draft model is named as a model.
        drafter: a drafter of your own, in place of draft and sources.
        on_progress: called with what is done and what there is to do in all, of each phase in turn: fetching,
            exporting, checking; in place of a bar on the terminal or in the notebook.
        on_calibration: called with rounds measured and most rounds, at the first use of a package on a machine; without
            it, the log `reader_edge.measuring` tells what is measured, and for how long.
        rule: by which answers may differ from the model's own, as `reader_edge_lossy.relaxed.Relaxed()`.
        adapters: by the names that requests call them, folders or files of adapters; what is exported takes them then.

        Raises CatalogueError, PackageError, InstallationError where what exports is not installed, ExportError,
        TokenizerError, DatastoreError, DraftModelError, ConfigError or ProviderError.
        """
        name = None if model is None else os.fspath(model) if given_path(model, "model") else ""
        given = engine_config(config, options), given_config(sources, DraftSources, "sources")
        load = partial(super().load, draft=draft, drafter=drafter, rule=rule, adapters=adapters)
        try:
            with progress_for(given_callback(on_progress, "on_progress")):
                return loaded(load, name, *given, given_callback(on_calibration, "on_calibration"), bool(adapters))
        except ReaderEdgeError as error:
            raise error from None  # its sentence is what is read, not what libraries met before


class AsyncEngine(reader_edge_runtime.AsyncEngine):
    """An engine that many tasks use at once, of any event loop in any thread. Each answer is what it would be alone.

        async with AsyncEngine.load("smollm2:135m") as engine:
            async for chunk in engine.stream("# tar", max_tokens=100):
                print(chunk.text, end="")

    engine: the engine that answers; other threads may keep using it.
    max_grammars: answers with grammars that may run or wait together; BusyError for more.
    Raises ConfigError for an engine or a config of another kind.
    """

    _is_owner = False

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str] | None = None,
        config: EngineConfig | None = None,
        draft: DraftConfig | None = None,
        sources: DraftSources | None = None,
        drafter: Drafter | None = None,
        on_progress: Callback | None = None,
        on_calibration: Callback | None = None,
        rule: RuleConfig | None = None,
        adapters: AdapterPaths = NO_ADAPTERS,
        serving: ServingConfig | None = None,
        **options: Unpack[EngineOptions],
    ) -> Self:
        """As `Engine.load`, which takes a while: call it before an event loop runs, or in a thread beside it.

        The engine is closed with this one. serving: limits of what runs and waits.
        """
        given = draft, sources, drafter, on_progress, on_calibration, rule, adapters
        engine = Engine.load(model, config, *given, **options)
        made = cls(engine, serving)
        made._is_owner = True
        return made

    async def close(self, cancels: bool = False) -> None:
        """Take no more requests; wait for running ones, or cancel them. Further calls do nothing."""
        await super().close(cancels)
        if self._is_owner:
            self.engine.close()

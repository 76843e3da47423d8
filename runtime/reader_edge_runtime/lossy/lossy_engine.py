"""The engine of lossy answers: text in, text out, and what was given up for speed."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from reader_edge_runtime.answer import Answer
from reader_edge_runtime.array_file import ArrayFormat
from reader_edge_runtime.assembly import assemble
from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.session import FORMAT, LOSSY_MAGIC, load_session, save_session
from reader_edge_runtime.drafting.device_drafts import DeviceDrafts
from reader_edge_runtime.drafting.draft_sources import DraftSources
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers
from reader_edge_runtime.engine import Engine
from reader_edge_runtime.errors import ConfigError, SessionError
from reader_edge_runtime.given_arguments import Callback, EngineOptions, engine_config, given_callback, given_config
from reader_edge_runtime.lossy.relaxed import Relaxed
from reader_edge_runtime.lossy.strength import Strength
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.outside.config_checks import require
from reader_edge_runtime.outside.user_input import given_path
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.conversation import Encodable, Message
from reader_edge_runtime.text.tokenizer import Tokenizer

_SESSION = ArrayFormat(
    magic=LOSSY_MAGIC,
    error=SessionError,
    name="a lossy session",
    owner="package",
    remedy="erase it and begin a new session",
    akin={FORMAT.magic: "is a session of exact answers, which `run` goes on with, and no lossy engine does"},
)


class LossyEngine(Engine):
    """An engine whose answers may differ from the model's own; each tells in `given_up` how much they do.

        engine = LossyEngine.load("models/demo/package", strength=Relaxed(gap=0.69, budget=0.02))
        result = engine.generate("# tar")
        print(result.text, result.given_up)

    strength: the rule and what is asked of it. What it learns stays with it: no exact engine takes
    its sessions, which are marked, nor it theirs, and it keeps no history file.
    """

    is_lossy = True

    def __init__(
        self,
        package: ModelPackage,
        tokenizer: Tokenizer,
        decoder: Decoder,
        width_report: WidthReport | None = None,
        strength: Strength | None = None,
    ) -> None:
        super().__init__(package, tokenizer, decoder, width_report)
        self.strength = given_strength(strength).opened(package, tokenizer)
        self.is_greedy = self.strength.is_greedy
        self._usual = OwnAnswers.of_package(package)

    @classmethod
    def load(  # type: ignore[override]  # drafters of the caller's own, who learn elsewhere, have no place here
        cls,
        path: str | os.PathLike[str],
        config: EngineConfig | None = None,
        draft: DraftConfig | None = None,
        sources: DraftSources | None = None,
        strength: Strength | None = None,
        on_progress: Callback | None = None,
        on_calibration: Callback | None = None,
        **options: Unpack[EngineOptions],
    ) -> "LossyEngine":
        """Open a package as Engine.load does. strength: by default Relaxed(). Raises what it raises."""
        package, settings = given_path(path, "path"), engine_config(config, options)
        limits = given_config(draft, DraftConfig, "draft")
        drafted_from, asked = given_config(sources, DraftSources, "sources"), given_strength(strength)
        if drafted_from.history is not None:
            raise ConfigError(
                "A history file serves exact answers: leave it out, a lossy session keeps what was learned."
            )
        callbacks = given_callback(on_progress, "on_progress"), given_callback(on_calibration, "on_calibration")
        opened, tokenizer, decoder, report = assemble(
            package, settings, limits, drafted_from, None, *callbacks, asked.open_sources
        )
        return cls(opened, tokenizer, asked.decoder(decoder, callbacks[1]), report, asked)

    def answer(
        self, prompt: Encodable, config: GenerationConfig | None = None, device: DeviceDrafts | None = None
    ) -> Answer:
        """As of Engine, by a rule of its own. Raises ConfigError for what its strength refuses."""
        config = self.with_sampling(config)
        self.strength.refuse(config)
        ends = {*self.package.manifest.eos_token_ids, *config.stop_token_ids}
        return super().answer(prompt, replace(config, acceptance=self.strength.rule(ends, self._usual)), device)

    def save_session(self, path: str | os.PathLike[str], messages: Sequence[Message] = ()) -> None:
        """As of Engine, in a file that no exact engine takes. Raises SessionError or ConfigError."""
        file = given_path(path, "path")
        with self.working() as decoder:
            save_session(decoder, file, self.package.fingerprint(), messages, _SESSION)

    def load_session(self, path: str | os.PathLike[str]) -> list[Message]:
        """As of Engine, from a file that a lossy engine wrote. Raises SessionError."""
        file = given_path(path, "path")
        with self.working() as decoder:
            return load_session(decoder, file, self.package.fingerprint(), _SESSION)

    def release(self, *requests: Request) -> None:
        """As of Engine, but measured pass times, which exact engines plan by, stay as they are."""
        self.withdraw(*requests)
        if not self._shared.is_working and not self._shared.is_closed:
            with self.working():
                pass


def given_strength(strength: object) -> Strength:
    """What was given, or the default. Raises ConfigError for what is none."""
    asked = Relaxed() if strength is None else strength
    require(isinstance(asked, Strength), "strength", asked, "a Strength, such as Relaxed()")
    assert isinstance(asked, Strength)
    return asked

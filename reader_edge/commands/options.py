"""Options that several commands have, and how a command gets them in groups."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from reader_edge_runtime import Engine, EngineConfig, GenerationConfig

T = TypeVar("T")

DIFFERENT_TOKENS = "Drafted and plain decoding emitted different tokens: 'reader-edge verify' shows where."

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

temperature = click.option("-t", "--temperature", default=0.0, show_default=True, help="0 takes the most likely token.")
top_p = click.option(
    "--top-p", default=1.0, show_default=True, help="Keep the likeliest tokens up to this mass; 1 is off."
)
seed = click.option("--seed", default=0, show_default=True, help="The same seed gives the same text, drafted or not.")
threads = click.option("--threads", default=0, show_default=True, help="0 takes all usable cores.")
no_native = click.option("--no-native", is_flag=True, help="Leave native kernels out, where they are installed.")
provider = click.option(
    "--provider",
    type=click.Choice(["cpu", "cuda"]),
    help="Where the model runs. Default: on CUDA if package, wheel and machine allow it, else on the CPU.",
)
guard = click.option(
    "--guard", is_flag=True, help="Decide near ties by single-token passes, where wide passes differ from them."
)
datastores = click.option(
    "--datastore",
    "datastores",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Draft from this file of `reader-edge datastore build` too; up to 4.",
)
prompts = click.option(
    "--prompts",
    type=FILE,
    help='Prompts to use: one a line, or a .jsonl file with a "prompt" a line. Default: a bundled set.',
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def machine(command: Callable[..., T]) -> Callable[..., T]:
    """Options of a model's place: threads, kernels, provider."""
    return threads(no_native(provider(command)))


def grouped(**kinds: type) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Hand a command its options in groups instead of one by one.

    kinds: parameter of the command -> dataclass; it is made of the options that it has fields for, and its defaults
    stand for options that the command does not have. All other options reach the command under their own names.
    """

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(command)
        def call(**values: Any) -> T:
            for parameter, kind in kinds.items():
                names = [field.name for field in fields(kind) if field.name in values]
                values[parameter] = kind(**{name: values.pop(name) for name in names})
            return command(**values)

        return call

    return decorate


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model is loaded, and which files it drafts from."""

    threads: int = 0
    no_native: bool = False
    provider: str | None = None
    guard: bool = False
    no_calibrate: bool = False
    history: Path | None = None
    datastores: tuple[str, ...] = ()

    def config(self) -> "EngineConfig":
        """Raises ConfigError."""
        from reader_edge_runtime import EngineConfig

        return EngineConfig(
            threads=self.threads,
            provider=self.provider,
            is_near_tie_guarded=self.guard,
            is_calibrated=not self.no_calibrate,
            uses_native=not self.no_native,
        )

    def load(self, model: str | None) -> "Engine":
        """Load a model with these options. Raises ConfigError, or what `load_engine` raises."""
        from reader_edge.model_source import load_engine

        return load_engine(model, self.config(), self.history, self.datastores)


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """How an answer is decoded."""

    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    no_draft: bool = False

    def config(self, is_scored: bool = False) -> "GenerationConfig":
        """Raises ConfigError."""
        from reader_edge_runtime import GenerationConfig, SamplingConfig

        sampling = SamplingConfig(
            repetition_penalty=self.repetition_penalty,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
        )
        return GenerationConfig(
            max_tokens=self.max_tokens,
            sampling=sampling,
            stop=self.stop,
            is_drafted=not self.no_draft,
            is_scored=is_scored,
        )

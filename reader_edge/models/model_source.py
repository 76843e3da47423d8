"""Finds the package, source or tokenizer of MODEL: a package, a folder, a GGUF file, a name, or the demo."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from reader_edge.models.catalogue import canonical, is_model_name, similar_name
from reader_edge.models.exported import ModelSource, exported, package_of
from reader_edge.models.pull import found_here, pulled
from reader_edge.terminal.console import draws_bars, load_progress, stderr_console
from reader_edge.terminal.formatting import visible
from reader_edge_export.libraries import check_installation
from reader_edge_export.sources.source import source_name
from reader_edge_runtime import DraftSources, EngineConfig
from reader_edge_runtime.call_options import NO_ADAPTERS, AdapterPaths, Callback
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.drafting.speculators.speculated_tree import NAME as SPECULATOR
from reader_edge_runtime.errors import (
    CatalogueError,
    ConfigError,
    InstallationError,
    PackageError,
    SignatureError,
    TokenizerError,
    UnknownModelError,
)
from reader_edge_runtime.package.manifest import MANIFEST_NAME, TOKENIZER_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import PIPELINE_NAME
from reader_edge_runtime.package.signature import PackageSignature, is_signed
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.untrusted.gguf_header import is_gguf

if TYPE_CHECKING:  # a device that only asks a server has no ONNX Runtime, and reads tokenizers here
    import reader_edge_runtime
    from reader_edge.engine import Engine
    from reader_edge_runtime.decoding.rule_config import RuleConfig

E = TypeVar("E", bound="reader_edge_runtime.Engine")

MODEL_VARIABLE = "READER_EDGE_MODEL"
NO_SOURCES = DraftSources()
_SILENT = "The trained speculator of '{}' is silent beside images: in conversations with some, retrieval drafts alone."
_SOURCE_FILES = ("config.json", "adapter_config.json", "snapshots/*/config.json", "*.gguf", "*.safetensors")


def load_engine(
    model: str | None,
    config: EngineConfig,
    sources: DraftSources = NO_SOURCES,
    rule: "RuleConfig | None" = None,
    adapters: AdapterPaths = NO_ADAPTERS,
) -> "Engine":
    """Find a model and load it as `Engine.load` does, and say where it drafts less than it could."""
    from reader_edge.engine import Engine

    engine = Engine.load(model, config, sources=sources, rule=rule, adapters=adapters)
    for notice in (signature_notice(engine.package, config.signature_key), draft_notice(engine, sources)):
        if notice:
            click.echo(visible(notice), err=True)
    return engine


def signature_notice(package: ModelPackage, key: str | os.PathLike[str] | None = None) -> str:
    """Who signed a package; "" for one without a signature. key: the one that was required to have."""
    if not is_signed(package.folder):
        return ""
    try:
        signature = PackageSignature.read(package.folder, None if key is None else Path(key))
        signature.check(package)
    except InstallationError:
        return f"'{package.folder}' is signed, which is not checked here: pip install 'reader-edge[sign]'."
    except SignatureError as error:
        return f"Warning: {error}"
    compared = "which was required" if signature.is_trusted else "whose owner was not checked (--require-signature)"
    return f"'{package.folder}' is signed by the key {signature.key_id}, {compared}."


def loaded(
    load: Callable[..., E],
    model: str | None,
    config: EngineConfig,
    sources: DraftSources,
    on_calibration: Callback | None = None,
    takes_adapters: bool = False,
) -> E:
    """Find a model and load it, with progress on a terminal or in a notebook.

    sources: their draft model may be whatever `model` may be. takes_adapters: of `ExportOptions`.
    """
    find = finder(config)
    package = finder(config, takes_adapters)(model)
    found = _found(sources, find) if config.is_drafted else sources
    with load_progress("Checking the model", "Measuring this machine (once)") as (on_files, on_measuring):
        drawn = on_measuring if draws_bars(stderr_console()) else None  # in a pipe, a line of the log tells it
        return load(package, config, sources=found, on_progress=on_files, on_calibration=on_calibration or drawn)


def draft_notice(engine: "reader_edge_runtime.Engine", sources: DraftSources = NO_SOURCES) -> str:
    """What to tell a user whose engine drafts less than was requested; "" where it drafts everything."""
    permission = engine.draft_permission
    if permission.scope == "all":
        is_silent = engine.package.manifest.images is not None and _uses_speculator(engine)
        return _SILENT.format(engine.package.folder) if is_silent else ""
    if permission.scope == "greedy":
        return (
            "Passes of several widths give other bits on this machine: only greedy answers without penalties, biases "
            "and grammars are drafted, and their near ties decided by single passes (--guard)."
        )
    is_named = replace(sources, extra=()) != NO_SOURCES
    left_out = " What was named to draft from is not loaded." if is_named else ""
    if not engine.decoder.config.is_drafted:
        return f"Answers are decoded plainly (--no-draft).{left_out}" if left_out else ""
    return (
        f"'{engine.package.folder}' promises the same bits in passes of every width, which ONNX Runtime does not keep "
        "on this machine: drafting is off. --guard drafts all the same, and decides near ties by single passes."
        f"{left_out}"
    )


def further_sources(engine: "reader_edge_runtime.Engine", sources: DraftSources) -> list[DraftSource]:
    """Sources beside those compiled in, opened for other drafters of an engine's model; given as for `load_engine`.

    A speculator that the engine leaves alone, since it cannot pay here, is none of them.
    """
    from reader_edge_runtime.assembly import open_sources

    is_left_alone = isinstance(engine.decoder.drafter, RetrievalDrafter) and not _uses_speculator(engine)
    given = replace(
        _found(sources, finder(engine.decoder.config)), has_speculator=sources.has_speculator and not is_left_alone
    )
    return open_sources(given, engine.package, engine.tokenizer, engine.decoder.target, engine.decoder.config)


def _uses_speculator(engine: "reader_edge_runtime.Engine") -> bool:
    drafter = engine.decoder.drafter
    return isinstance(drafter, RetrievalDrafter) and SPECULATOR in drafter.sources.names


def finder(config: EngineConfig, takes_adapters: bool = False) -> Callable[[str | None], Path]:
    """What finds packages. Where they must be signed nothing is fetched or exported for them: it would not be."""
    find = find_package if config.signature_key is None else find_stored
    return partial(find, takes_adapters=takes_adapters)


def _found(sources: DraftSources, find: Callable[[str | None], Path]) -> DraftSources:
    """The same with the package of the draft model that is named."""
    named = sources.draft_model
    return sources if named is None else replace(sources, draft_model=find(str(named)))


def model_name(model: str | None) -> str:
    """What to call a model: its name, or that of its folder or file. None: as for `find_package`."""
    name = _given(model) or "demo"
    path = Path(name)
    called = source_name(path) if path.exists() else name
    return os.fsencode(called).decode("utf-8", "replace")  # a folder's name may be no text, which JSON cannot have


def _given(model: str | None) -> str | None:
    """What names a model; None where nothing does. Raises PackageError for an empty name, as of a variable not set."""
    if model == "":
        raise PackageError("The model's name is empty: give a package, a file or a name, or leave it out for the demo.")
    return model or os.environ.get(MODEL_VARIABLE)


def find_package(model: str | None, mmproj: Path | None = None, takes_adapters: bool = False) -> Path:
    """The package folder of a model; what is none yet is fetched and exported once, into the user's cache.

    None: what $READER_EDGE_MODEL names, else the bundled demo. mmproj, takes_adapters: of `ExportOptions`.
    Raises CatalogueError, PackageError, InstallationError, ExportError, or ConfigError for an mmproj of a package.
    """
    name = _given(model)
    source = _exported_from(name) if name else None
    if source is not None:
        return exported(replace(source, mmproj=mmproj, takes_adapters=takes_adapters))
    if mmproj is not None:
        raise ConfigError(f"--mmproj is for GGUF files, and the model is a package: leave '{mmproj}' out.")
    return Path(name) if name else bundled_demo()


def with_mmproj(model: str | None, mmproj: Path | None, takes_adapters: bool = False) -> str | None:
    """A model as it is named, or its package with what sees images in a file. Raises what `find_package` does."""
    return model if mmproj is None else str(find_package(model, mmproj, takes_adapters))


def find_tunable(model: str, source: str | None) -> tuple[Path, Path | None]:
    """The package of a model, and what it was exported from, where that is known or given.

    What is no package yet is exported, without checks. Raises what `find_package` does, and PackageError for a source
    that is given of another model than a package.
    """
    own = _exported_from(_given(model) or model)
    if own is None:
        return Path(model), None if source is None else find_source(source).path
    if source is not None:
        raise ConfigError(f"'{model}' is no package, but a source itself: leave --source out.")
    return exported(own, check="none"), own.path


def find_source(model: str) -> ModelSource:
    """What a path or a name means; what a name means is fetched where it is not here yet.

    Raises PackageError for a path that leads nowhere, CatalogueError, UnsupportedArchitectureError, or
    InstallationError where nothing could be exported.
    """
    if not _is_name(model):
        return ModelSource(Path(model))
    if found_here(model) is None:
        check_installation()  # before a download that nothing could be made of
    return ModelSource(pulled(model), canonical(model))


def _exported_from(model: str) -> ModelSource | None:
    """What a model is exported from; None for a package."""
    source = find_source(model)
    path = source.path
    _check_folder(path)
    is_source = path.is_file() or (_is_source_folder(path) and not (path / MANIFEST_NAME).exists())
    return source if source.name or is_source else None


def find_stored(model: str | None, takes_adapters: bool = False) -> Path:
    """What is here of a model, nothing fetched or exported: its package, else what it would be exported from.

    None: as for `find_package`. Raises PackageError for a path that leads nowhere, and CatalogueError.
    """
    name = _given(model)
    if not name:
        return bundled_demo()
    if not _is_name(name):
        _check_folder(Path(name))
        return Path(name)
    source = found_here(name)
    if source is None:
        raise CatalogueError(f"'{name}' is not here: `reader-edge pull {name}` fetches it.")
    package = package_of(ModelSource(source, canonical(name), takes_adapters=takes_adapters))
    return package if (package / MANIFEST_NAME).is_file() else source


def load_tokenizer(name: str) -> Tokenizer:
    """Load a model's tokenizer, or one from its own file; a model that is named is fetched, though it may not run here.

    Raises TokenizerError, PackageError or CatalogueError.
    """
    path = pulled(name) if _is_name(name) else Path(name)
    if is_gguf(path):
        return _gguf_tokenizer(path)
    if path.is_dir():
        path = (ModelPackage.open(path).folder if (path / PIPELINE_NAME).exists() else path) / TOKENIZER_NAME
    if not path.is_file():
        raise TokenizerError(f"No tokenizer at '{path}': give a package, a Hugging Face folder or a tokenizer.json.")
    return Tokenizer.from_file(path)


def bundled_demo() -> Path:
    """The demo package: inside an installed wheel, or in the source tree."""
    here = Path(__file__).resolve().parents[1]
    places = (here / "demo", here.parent / "models" / "demo" / "package")
    found = next((place for place in places if (place / MANIFEST_NAME).is_file()), None)
    if found is None:
        raise PackageError("This installation has no demo model: name a MODEL, or install reader-edge again.")
    return found


def _gguf_tokenizer(path: Path) -> Tokenizer:
    check_installation(["gguf"], "Reading GGUF files")
    from reader_edge_export.sources.gguf.gguf_file import GgufFile
    from reader_edge_export.sources.gguf.ollama import in_words_of_llama_cpp
    from reader_edge_export.sources.gguf.tokenizer import build_tokenizer
    from reader_edge_export.sources.gguf.vocabulary import vocabulary_of

    return Tokenizer(build_tokenizer(vocabulary_of(in_words_of_llama_cpp(GgufFile.open(path)))))


def _check_folder(path: Path) -> None:
    """Raise PackageError for a folder that is neither a package nor a model's."""
    # A manifest may be a link to nothing, about which the package has a sentence of its own.
    is_package = any(place.exists() or place.is_symlink() for place in (path / MANIFEST_NAME, path / PIPELINE_NAME))
    if path.is_dir() and not is_package and not _is_source_folder(path):
        raise PackageError(
            f"'{path}' is no model: it has neither {MANIFEST_NAME} (a package) nor config.json (a Hugging Face "
            "folder). Give a folder written by 'reader-edge export', one in Hugging Face format, a GGUF file or a name."
        )


def _is_source_folder(path: Path) -> bool:
    """Whether a folder holds a model to export, or what an export has a better sentence about than a package has."""
    return any(next(path.glob(pattern), None) for pattern in _SOURCE_FILES)


def _is_name(model: str) -> bool:
    """Whether MODEL is a name, of the catalogue or the hub, and no path. Raises PackageError where it is neither."""
    path = Path(model)
    if path.exists():
        return False
    is_slip = path.parent.name and path.parent.exists()  # "models/demo" beside a folder models
    if is_slip or not is_model_name(model):
        similar = None if is_slip else similar_name(model)
        raise UnknownModelError(
            f"There is nothing at '{model}': give a package, a model's folder in Hugging Face format, a GGUF file, "
            f"or a name (`reader-edge pull --help` lists them).{f' Did you mean {similar}?' if similar else ''}"
        )
    return True

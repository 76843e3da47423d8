"""Which package MODEL means: a package folder, a Hugging Face folder or id, or the demo; and which tokenizer."""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import click
from filelock import FileLock
from platformdirs import user_cache_path

from reader_edge.terminal.console import load_progress, stage_progress
from reader_edge_runtime import Engine, EngineConfig
from reader_edge_runtime.errors import PackageError, TokenizerError
from reader_edge_runtime.package.manifest import FORMAT_VERSION, MANIFEST_NAME, TOKENIZER_NAME
from reader_edge_runtime.text.tokenizer import Tokenizer

MODEL_VARIABLE = "READER_EDGE_MODEL"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def load_engine(
    model: str | None, config: EngineConfig, history: Path | None = None, datastores: Sequence[str] = ()
) -> Engine:
    """Find a model and load it, with progress on a terminal. history, datastores: files to draft from."""
    package = find_package(model)
    with load_progress("Checking the model", "Measuring this machine (once)") as (on_files, on_calibration):
        engine = Engine.load(
            package,
            config,
            history=history,
            datastores=datastores,
            on_progress=on_files,
            on_calibration=on_calibration,
        )
    if not engine.decoder.is_drafting:
        click.echo(
            f"'{package}' promises the same bits in passes of every width, which ONNX Runtime does not keep on this "
            "machine: drafting is off. --guard drafts all the same, and decides near ties by single passes.",
            err=True,
        )
    return engine


def find_package(model: str | None) -> Path:
    """The package folder of a model; a Hugging Face one is exported once into the user's cache.

    None: what $READER_EDGE_MODEL names, else the bundled demo. Raises PackageError, InstallationError or ExportError.
    """
    name = model or os.environ.get(MODEL_VARIABLE)
    if not name:
        return bundled_demo()
    folder = Path(name)
    if (folder / "config.json").is_file() and not (folder / MANIFEST_NAME).exists():
        return _exported(name, _source_key(folder))
    if _HUB_ID.fullmatch(name) and not folder.parent.exists():  # "models/demo" beside a folder models is a slip
        return _exported(name, name)
    return folder


def load_tokenizer(name: str) -> Tokenizer:
    """Load the tokenizer of a package or model folder, or from its file. Raises TokenizerError."""
    path = Path(name)
    if path.is_dir():
        path /= TOKENIZER_NAME
    if not path.is_file():
        raise TokenizerError(f"No tokenizer at '{path}': give a package, a Hugging Face folder or a tokenizer.json.")
    return Tokenizer.from_file(path)


def bundled_demo() -> Path:
    """The demo package: inside an installed wheel, or in the source tree."""
    here = Path(__file__).resolve().parent
    places = (here / "demo", here.parent / "models" / "demo" / "package")
    found = next((place for place in places if (place / MANIFEST_NAME).is_file()), None)
    if found is None:
        raise PackageError("This installation has no demo model: name a MODEL, or install reader-edge again.")
    return found


def _exported(name: str, key: str) -> Path:
    """The package of a Hugging Face model, in the user's cache; one process exports it while others wait."""
    from reader_edge_export.options import ExportOptions
    from reader_edge_export.pipeline import export_model

    digest = hashlib.sha256(f"{FORMAT_VERSION} {key}".encode()).hexdigest()[:16]
    out = user_cache_path("reader-edge") / "packages" / f"{Path(name).resolve().name}-int8-{digest}"
    if (out / MANIFEST_NAME).is_file():
        return out
    with stage_progress(f"Exporting {name} (once)") as on_stage, FileLock(f"{out}.lock"):
        if not (out / MANIFEST_NAME).is_file():  # another process may have exported it meanwhile
            export_model(name, out, ExportOptions(precision="int8", attention="exact"), on_stage=on_stage)
    return out


def _source_key(folder: Path) -> str:
    """Changes when a file of the model does. Sizes and times: reading all weights at every start would take seconds."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return f"{folder.resolve()} {stats}"

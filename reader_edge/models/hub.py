"""Fetches a model's files with huggingface_hub, which resumes broken downloads, and checks them."""

import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

from reader_edge.models.catalogue import Origin
from reader_edge.models.store import check_room, folder_bytes, report_arrivals
from reader_edge.terminal.console import OnProgress
from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.package.package_folder import is_disk_full
from reader_edge_export.sources.architectures import check_architecture
from reader_edge_export.sources.find import part_names
from reader_edge_export.sources.folder.folder_files import read_json
from reader_edge_export.sources.pooling import POOLING_FILE
from reader_edge_runtime.errors import (
    CatalogueError,
    HubUnavailableError,
    ReaderEdgeError,
    UnsupportedArchitectureError,
)
from reader_edge_runtime.package.manifest import sha256_of

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

ANSWER_S = 2.5  # for the first question: without a network nobody waits longer

_WANTED = ("*.json", "*.safetensors", "*.jinja", "*.model")
_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_NAMES = 20
_EYES = ("-f16", "bf16", "q8_0", "f32")  # of an mmproj file's name, what is wanted first


@dataclass(frozen=True, slots=True)
class _File:
    """A file as the hub announces it. sha256: of large ones only."""

    name: str
    num_bytes: int
    sha256: str | None

    @classmethod
    def of(cls, file: "RepoSibling") -> "_File":
        if type(file.size) is not int or file.size < 0:
            raise ValueError(file.size)
        return cls(file.rfilename, file.size, _matching(_SHA256, file.lfs.sha256) if file.lfs else None)


@dataclass(frozen=True, slots=True)
class _Revision:
    """A repository at one commit: its files with plain names, in folders GGUF files and what says how it pools."""

    commit: str
    files: tuple[_File, ...]

    @classmethod
    def of(cls, info: "ModelInfo") -> "_Revision":
        """Check an answer of the hub. Raises whatever a value of another kind raises."""
        plain = [file for file in info.siblings or [] if _is_plain(file.rfilename)]
        return cls(_matching(_COMMIT, info.sha), tuple(map(_File.of, plain)))


def _is_plain(name: str) -> bool:
    folder, _, own = name.rpartition("/")
    is_gguf = name.endswith(".gguf") and _NAME.fullmatch(folder)
    return name == POOLING_FILE or bool(_NAME.fullmatch(own) and (is_gguf or not folder))


def _matching(pattern: re.Pattern[str], text: str | None) -> str:
    if text is None or not pattern.fullmatch(text):
        raise ValueError(text)
    return text


def fetch(origin: Origin, folder: Path, on_progress: OnProgress) -> None:
    """Fetch a model into a folder: the one file that is wanted, in all its parts, or a folder in Hugging Face format.

    Whole files of an earlier try are kept. The library itself resumes a file that breaks off, a few times.
    Raises HubUnavailableError soon where there is no network, CatalogueError, and UnsupportedArchitectureError before
    any weights are fetched.
    """
    if util.find_spec("huggingface_hub") is None:
        raise HubUnavailableError("Fetching from the hub needs huggingface_hub: pip install 'reader-edge[export]'.")
    import huggingface_hub
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # one bar is shown here for all files
    with quiet_libraries():
        revision = _ask(origin.hub_id)
        files = _wanted_files(origin, revision.files)
        place = folder if origin.file else folder / origin.hub_id.rpartition("/")[2]
        place.mkdir(parents=True, exist_ok=True)
        total = sum(file.num_bytes for file in files)
        check_room(place, total - folder_bytes(place))
        with _failures_as_errors(origin.hub_id), report_arrivals(place, total, on_progress):
            # The config comes first, so that an unsupported model costs nothing.
            for file in sorted(files, key=lambda file: file.name != "config.json"):
                path = huggingface_hub.hf_hub_download(
                    origin.hub_id, file.name, revision=revision.commit, local_dir=place
                )
                if file.name == "config.json":
                    _check_config(Path(path), folder)
    _check(place, files)


def _ask(hub_id: str) -> _Revision:
    """What the hub says of a repository: its commit, its files, their sizes and checksums."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    answer: Future[_Revision] = Future()

    def ask() -> None:
        try:
            answer.set_result(_Revision.of(HfApi().model_info(hub_id, files_metadata=True, timeout=ANSWER_S)))
        except Exception as error:
            answer.set_exception(error)

    # A thread, since neither finding an address nor trying several of them is within the timeout.
    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.result(ANSWER_S)
    except HFValidationError:
        raise CatalogueError(f"'{hub_id}' is no name that a model of the hub can have: give OWNER/NAME.") from None
    except HfHubHTTPError as error:
        raise _refusal(hub_id, error) from error
    except Exception as error:
        if _is_silence(error):
            raise _silence(hub_id, type(error).__name__) from error
        raise HubUnavailableError(
            f"What the hub answers about '{hub_id}' cannot be read ({type(error).__name__}): try again, "
            "or let HF_ENDPOINT name a hub where it is set."
        ) from error


def _refusal(hub_id: str, error: "HfHubHTTPError") -> CatalogueError:
    """What an answer of the hub means that is none."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return CatalogueError(
            f"'{hub_id}' is gated: accept its licence at https://huggingface.co/{hub_id}, "
            "then log in with `hf auth login`, or set HF_TOKEN."
        )
    if isinstance(error, RepositoryNotFoundError):
        return CatalogueError(f"The hub has no model '{hub_id}', or shows it to none but those who are logged in.")
    status = error.response.status_code if error.response is not None else None
    if status in (401, 403):
        return CatalogueError(f"The hub refuses '{hub_id}' (status {status}): log in again, `hf auth login`.")
    return _silence(hub_id, f"status {status}")


def _is_silence(error: Exception) -> bool:
    """A timeout, or a failed connection: of requests, httpx or httpx2, by the version of huggingface_hub."""
    is_of_httpx = any(kind.__name__ == "TransportError" for kind in type(error).__mro__)
    return is_of_httpx or (isinstance(error, OSError) and not isinstance(error, ValueError))


def _silence(hub_id: str, reason: str) -> HubUnavailableError:
    return HubUnavailableError(
        f"The hub does not answer ({reason}), so '{hub_id}' cannot be fetched: connect to the network and try again."
    )


def _wanted_files(origin: Origin, files: Sequence[_File]) -> list[_File]:
    if origin.file:
        parts = part_names(origin.file)
        if origin.file != parts[0]:
            raise CatalogueError(f"'{origin.file}' is not the first of {len(parts)} parts: name '{parts[0]}' instead.")
        found = {file.name: file for file in files}
        for name in parts:
            if name not in found:
                raise CatalogueError(f"'{origin.hub_id}' holds no file '{name}'{_gguf_files(files)}.")
        return [*(found[name] for name in parts), *_eyes(origin.file, files)]
    wanted = [file for file in files if any(fnmatch(file.name, pattern) for pattern in _WANTED)]
    if not any(file.name == "config.json" for file in wanted):
        raise CatalogueError(
            f"'{origin.hub_id}' holds no config.json, so it is no model in Hugging Face format{_gguf_files(files)}."
        )
    return wanted


def _eyes(model: str, files: Sequence[_File]) -> list[_File]:
    """What sees images for a GGUF file: of those in its folder the one that loses nothing in the fewest bytes."""

    def rank(file: _File) -> tuple[list[bool], str]:
        return [kind not in file.name.lower() for kind in _EYES], file.name

    start = f"{model.rpartition('/')[0]}/mmproj".removeprefix("/")
    beside = [file for file in files if file.name.startswith(start) and file.name.endswith(".gguf")]
    return [] if model.startswith(start) else sorted(beside, key=rank)[:1]


def _gguf_files(files: Sequence[_File]) -> str:
    """What may be requested instead, as the end of a sentence."""
    names = [file.name for file in files if file.name.endswith(".gguf")]
    if not names:
        return ": name another model"
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"; it has these, to be named as OWNER/NAME/FILE: {', '.join(names[:_MAX_NAMES])}{more}"


@contextmanager
def _failures_as_errors(hub_id: str) -> Iterator[None]:
    """Say of a download's failure whose it is. A full disk is reported elsewhere, for downloads of all kinds."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        yield
    except RepositoryNotFoundError as error:  # gated is one of these, and shows only here
        raise _refusal(hub_id, error) from error
    except Exception as error:  # the library raises many classes for what a hub may send
        if isinstance(error, ReaderEdgeError) or is_disk_full(error):
            raise
        raise CatalogueError(
            f"The download of '{hub_id}' broke off ({type(error).__name__}): try again; files that are whole are kept."
        ) from error


def _check_config(path: Path, folder: Path) -> None:
    try:
        check_architecture(read_json(path))
    except UnsupportedArchitectureError:
        shutil.rmtree(folder, ignore_errors=True)  # nothing to go on with
        raise


def _check(place: Path, files: Sequence[_File]) -> None:
    """Compare sizes, and checksums where the hub gives them; a file that is wrong is removed, and so is any other."""
    for file in files:
        path = place / file.name
        if path.stat().st_size != file.num_bytes or (file.sha256 and sha256_of(path) != file.sha256):
            path.unlink()
            raise CatalogueError(f"'{file.name}' was not what the hub promised: fetch the model again.")
    for path in place.iterdir():  # huggingface_hub's notes, and what an earlier revision had
        if path.name not in {file.name.partition("/")[0] for file in files}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for file in files:
        if file.name != POOLING_FILE and "/" in file.name:  # a GGUF file of a folder, which is the source itself
            (place / file.name).rename(place / Path(file.name).name)
            if not any((place / file.name).parent.iterdir()):
                (place / file.name).parent.rmdir()

"""Uploads a package to the Hugging Face hub with huggingface_hub: what its manifest lists, and what goes with that."""

from importlib import util

from reader_edge.models.model_card import CERTIFICATE_NAME
from reader_edge_runtime.errors import CatalogueError, HubUnavailableError
from reader_edge_runtime.package.manifest import MANIFEST_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.signature import SIGNATURE_NAME

CARD_NAME = "README.md"


def pushed_files(package: ModelPackage) -> list[str]:
    """Names of what is uploaded. A model's own answers stay here: they may be to prompts of somebody's own."""
    beside = [name for name in (SIGNATURE_NAME, CARD_NAME, CERTIFICATE_NAME) if (package.folder / name).is_file()]
    return [MANIFEST_NAME, *package.manifest.files, *beside]


def push_package(package: ModelPackage, hub_id: str, is_private: bool) -> str:
    """Upload a package whose checksums were compared, in one commit, and return its address.

    The repository is made where there is none. Raises CatalogueError, or HubUnavailableError without the library or the
    hub.
    """
    if util.find_spec("huggingface_hub") is None:
        raise HubUnavailableError("Uploading needs huggingface_hub, which is missing: pip install huggingface_hub.")
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    no_name = CatalogueError(f"'{hub_id}' is no name that a model of the hub can have: give OWNER/NAME.")
    if hub_id.count("/") != 1:
        raise no_name
    files = [CommitOperationAdd(name, package.folder / name) for name in pushed_files(package)]
    api = HfApi()
    try:
        api.create_repo(hub_id, private=is_private or None, exist_ok=True)
        commit = api.create_commit(hub_id, files, commit_message="Upload a package of reader-edge")
    except HFValidationError:
        raise no_name from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "none"
        remedy = "log in with `hf auth login`, as one who may write there" if status in (401, 403) else "try again"
        raise CatalogueError(f"The hub does not take '{hub_id}' (status {status}): {remedy}.") from error
    except Exception as error:  # of the libraries below, which have classes of their own
        raise HubUnavailableError(
            f"'{hub_id}' cannot be uploaded ({type(error).__name__}): connect to the network and try again."
        ) from error
    return str(commit.commit_url)

"""Models by their Hugging Face id: the hub's cache first, then the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.models.sources.folder import missing
from slipstream.models.sources.store import CatalogError

FETCHED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py"]
IGNORED = ["*/*", "consolidated*"]  # other formats in sub-folders, and a second copy of the weights


# models whose ids had no owner when the hub began
OWNERLESS = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "openai-gpt": "openai-community/openai-gpt",
    "distilgpt2": "distilbert/distilgpt2",
}


def snapshot(repo: str, revision: str | None = None, fetch: bool = True) -> Path:
    """The folder of a model in the hub's cache. It is fetched if it is missing or incomplete and `fetch` allows."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repo, revision=revision, local_files_only=True))
        if missing(folder) is None or not fetch:
            return folder
    except HFValidationError as error:
        raise CatalogError(f"{repo!r} is not a Hugging Face id: {str(error).splitlines()[0]}") from error
    except LocalEntryNotFoundError as error:
        if not fetch:
            raise CatalogError(f"{repo} is not in the Hugging Face cache of this machine") from error
    return _download(repo, revision, {"allow_patterns": FETCHED, "ignore_patterns": IGNORED})


def fetch_again(repo: str, revision: str | None, files: Sequence[str]) -> Path:
    """Replace damaged files of a model in the hub's cache."""
    return _download(repo, revision, {"allow_patterns": list(files), "force_download": True})


def _download(repo: str, revision: str | None, options: Mapping[str, Any]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, revision=revision, **options))
    except OSError as error:  # also the base of most errors of the hub
        if getattr(error, "errno", None) is not None:
            raise  # a full or read-only disk
        raise _refusal(repo, revision, error) from error
    except Exception as error:  # the network library, and so its error classes, depends on the hub's version
        raise _refusal(repo, revision, error) from error


def _refusal(repo: str, revision: str | None, error: Exception) -> CatalogError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return CatalogError(
            f"{repo} is gated: accept its terms on the Hugging Face site and log in with `hf auth login`"
        )
    if isinstance(error, RepositoryNotFoundError):
        return CatalogError(
            f"there is no model {repo} on the Hugging Face hub, or it is private and you are not logged in"
        )
    if isinstance(error, RevisionNotFoundError):
        return CatalogError(f"{repo} has no revision {revision!r}")
    where = "is not complete in the Hugging Face cache of this machine"
    return CatalogError(f"{repo} {where}, and the hub cannot be reached ({type(error).__name__})")


def cached(name: str) -> list[str]:
    """The ids of the models in the hub's cache with this bare name, such as gpt2."""
    from huggingface_hub.constants import HF_HUB_CACHE

    home = Path(HF_HUB_CACHE)
    folders = [*home.glob(f"models--{name}"), *home.glob(f"models--*--{name}")]
    return sorted(folder.name.removeprefix("models--").replace("--", "/") for folder in folders)

"""Downloads from the Hugging Face Hub, only ever when asked for.

Files come from a pinned commit and are compared with their SHA-256: the one in the catalogue where it is known, else
the one that the Hub states for that commit. A file is received as ``.part`` until it has been compared, so an
interrupted download goes on where it stopped and a wrong file never gets its final name. No token is sent: the data
sets are public.
"""

import hashlib
import os
import re
import shutil
from pathlib import Path

from fedga.data.formats.files import optional
from fedga.errors import FedGAError
from fedga.spec.catalog import Hub, HubFile, Source

_PURPOSE = "downloading data sets"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def download(source: Source, folder: Path, *, endpoint: str | None = None) -> None:
    """Place the files of ``source`` under ``folder/NAME``; ``endpoint`` is the Hub's address, else ``HF_ENDPOINT``."""
    hub = source.hub
    if hub is None:
        raise FedGAError(f"data set {source.name!r} is not on the Hub: it needs no download")
    # huggingface_hub without its telemetry, unless the user has asked for it: only the files are to be requested.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    optional("huggingface_hub", "huggingface_hub", _PURPOSE)
    endpoint = endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    target = folder / source.name
    lock = optional("filelock", "huggingface_hub", _PURPOSE)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with lock.FileLock(target / ".download.lock"):
            for file in hub.files:
                if not (target / file.path).is_file():
                    _fetch(hub, file, target / file.path, endpoint.rstrip("/"))
    except Exception as error:
        arrived = (path.is_file() and path.name != ".download.lock" for path in target.rglob("*"))
        if not any(arrived):  # a download that never began leaves no folder behind
            shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, FedGAError):
            raise
        detail = " ".join(str(error).split())[:160] or "no reason given"
        problem = f"could not be downloaded from {endpoint} to {target} ({type(error).__name__}: {detail})"
        cure = f"try again to go on where it stopped, or put {' and '.join(source.files[:2])} into {folder} yourself"
        raise FedGAError(f"{source.name} {problem}: {cure}") from error


def _fetch(hub: Hub, file: HubFile, target: Path, endpoint: str) -> None:
    library = optional("huggingface_hub", "huggingface_hub", _PURPOSE)
    transfer = optional("huggingface_hub.file_download", "huggingface_hub", _PURPOSE)
    url = library.hf_hub_url(hub.repository, file.path, repo_type="dataset", revision=hub.revision, endpoint=endpoint)
    metadata = library.get_hf_file_metadata(url, token=False)
    stated = metadata.etag if metadata.etag and _SHA256.fullmatch(metadata.etag) else ""
    if file.sha256 and stated and stated != file.sha256:
        raise _mismatch(url, file.sha256, stated)
    expected = file.sha256 or stated
    if not expected:
        raise FedGAError(f"{url} comes without a SHA-256, so it cannot be checked: download it yourself")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{expected[:16]}.part")
    if part.exists() and metadata.size is not None and part.stat().st_size > metadata.size:
        part.unlink()
    how = {"headers": library.utils.build_hf_headers(token=False), "displayed_filename": target.name}
    with part.open("ab") as received:
        begin = received.tell()
        transfer.http_get(metadata.location, received, resume_size=begin, expected_size=metadata.size, **how)
    with part.open("rb") as content:
        actual = hashlib.file_digest(content, "sha256").hexdigest()
    if actual != expected:
        part.unlink()
        raise _mismatch(url, expected, actual)
    part.replace(target)


def _mismatch(url: str, expected: str, actual: str) -> FedGAError:
    return FedGAError(f"{url} has SHA-256 {actual[:16]}... and not {expected[:16]}...: nothing was kept, so try again")

"""The model hub: packed models by name and version, each with its digest and size.

Layout, in the bucket ``model-center``, as in upstream's pipelines:

    NAME/VERSION/NAME.tar.gz    the model
    NAME/VERSION/model.json     {"sha256": ..., "size": ...}

The record is written before the model: a second push with other bytes is refused, and an interrupted push continues.
Only ``latest`` may change; its readers notice, since they verify the fetched bytes against the record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloudedge.bundle import extract_tar, published
from cloudedge.config import HubConfig
from cloudedge.errors import Conflict, InputError, IntegrityError, NotFound, Unavailable
from cloudedge.hub import (
    ANY,
    CHUNK,
    Descriptor,
    Digest,
    ObjectStore,
    Reader,
    canonical_json,
    hash_file,
    open_store,
    parse_json,
    prepare_bucket,
    verified,
)

__all__ = ["BUCKET", "LATEST", "ModelHub", "ModelRecord", "archive_key", "archive_url", "read_record", "unpack"]

BUCKET = "model-center"
LATEST = "latest"
"""The version that may change."""
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MEDIA = "application/gzip"
_RECORD_MAX = 4096
_HTTP_S = 30.0


@dataclass(frozen=True)
class ModelRecord:
    """The digest and size of a version."""

    sha256: str
    size: int


def archive_key(model: str, version: str) -> str:
    """Return the key of a version.

    Raises:
        InputError: the name or the version is not safe as a part of a path.
    """
    for what, value in (("Model Name", model), ("Model Version", version)):
        if not _PART.fullmatch(value) or ".." in value:
            raise InputError(f"{what} {value!r} is not valid", hint="Use letters, digits, '.', '_' and '-'.")
    return f"{model}/{version}/{model}.tar.gz"


def archive_url(endpoint: str, model: str, version: str) -> str:
    """Return the URL of a version."""
    return f"{endpoint.rstrip('/')}/{BUCKET}/{archive_key(model, version)}"


class ModelHub:
    """The hub, in any object store.

    Args:
        store: The bucket, or the folder that stands for it.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @classmethod
    def at(cls, endpoint: str, *, prepare: bool = False) -> ModelHub:
        """Return the hub of an object store (``http://host:port``), or of a folder.

        Args:
            endpoint: The address. The keys of an object store come from S3's usual places: AWS_ACCESS_KEY_ID ...
            prepare: Make the bucket if it does not exist, and make it publicly readable: servers fetch models without
                keys.
        """
        if not endpoint.startswith(("http://", "https://")):
            return cls(open_store(HubConfig(url=f"{endpoint.removeprefix('file://').rstrip('/')}/{BUCKET}")))
        # Signatures name a region; private servers accept any.
        config = HubConfig(url=f"s3://{BUCKET}", endpoint=endpoint, region="us-east-1")
        if prepare:
            prepare_bucket(config, public=True)
        return cls(open_store(config))

    def push(self, file: Path, model: str, version: str = LATEST) -> ModelRecord:
        """Push a packed model into the hub. Idempotent.

        Raises:
            Conflict: the version exists with other bytes, and is not ``latest``.
            NotFound: the file does not exist.
        """
        key = archive_key(model, version)
        if not file.is_file():
            raise NotFound(
                f"the packed model {file} does not exist",
                hint="Set Model Name to the training's Name, and train with Need Convert.",
            )
        hashed = hash_file(file)
        wanted = ModelRecord(hashed.digest.removeprefix("sha256:"), hashed.size)
        with self._exclusive(model, version):
            existing = self.record(model, version)
            if existing != wanted:
                if existing is not None and version != LATEST:
                    raise Conflict(
                        f"{model} {version} is in the hub with other bytes (sha256 {existing.sha256[:12]}, "
                        f"not {wanted.sha256[:12]})",
                        hint="Push it as another version: versions never change.",
                    )
                if existing is not None:
                    self._store.delete(key)  # a store takes a blob of the same size for the same blob
                data = canonical_json(asdict(wanted))
                self._store.put(_record_key(model, version), data, expected=None if existing is None else ANY)
            blob = Descriptor(media_type=_MEDIA, digest=hashed.digest, size=hashed.size)
            self._store.upload(key, blob, _reader(file), lambda _: None)
            self._store.settle([key])
        return wanted

    def fetch(self, model: str, version: str, target: Path) -> ModelRecord:
        """Copy a version to a new file, verified.

        Raises:
            NotFound: the version is not in the hub.
            IntegrityError: the bytes differ from those that were pushed.
        """
        record = self.record(model, version)
        if record is None:
            raise NotFound(
                f"{model} {version} is not in the hub",
                hint=f"Its versions: {', '.join(self.versions(model)) or 'none'}.",
            )
        blob = Descriptor(media_type=_MEDIA, digest=Digest(f"sha256:{record.sha256}"), size=record.size)
        with published(target, f"fetching {model} {version}") as draft, draft.open("wb") as out:
            for chunk in verified(self._store.get(archive_key(model, version)), blob, f"{model} {version}"):
                out.write(chunk)
        return record

    def record(self, model: str, version: str) -> ModelRecord | None:
        """Return the record of a version, or None if it is not in the hub."""
        archive_key(model, version)
        key = _record_key(model, version)
        if self._store.head(key) is None:
            return None
        return _parsed(b"".join(self._store.get(key)), f"the record of {model} {version}")

    def versions(self, model: str) -> list[str]:
        """List a model's versions."""
        found = (info.key.split("/") for info in self._store.list(f"{model}/"))
        return sorted({parts[1] for parts in found if parts[-1] == "model.json"})

    def _exclusive(self, model: str, version: str) -> AbstractContextManager[Any]:
        if self._store.compare_and_set and version != LATEST:
            return nullcontext()
        return self._store.lock(f"{model}-{version}")


def read_record(endpoint: str, model: str, version: str) -> ModelRecord:
    """Read a version's record from a hub over HTTP; its objects are publicly readable.

    Raises:
        NotFound: the version is not in the hub.
        Unavailable: the hub does not answer.
    """
    import requests  # noqa: PLC0415 - slow to import

    archive_key(model, version)
    url = f"{endpoint.rstrip('/')}/{BUCKET}/{_record_key(model, version)}"
    try:
        answer = requests.get(url, timeout=_HTTP_S)
    except requests.RequestException as error:
        raise Unavailable(f"reading {url}: {type(error).__name__}") from error
    if answer.status_code in {403, 404}:  # a store that may not be listed answers 403 for a missing object
        raise NotFound(
            f"{url} answers {answer.status_code}", hint="Run the modelhub step, which pushes a version with its record."
        )
    if not answer.ok:
        raise Unavailable(f"{url} answers {answer.status_code}")
    return _parsed(answer.content[:_RECORD_MAX], url)


def unpack(file: Path, folder: Path) -> Path:
    """Unpack a model into a new folder.

    Raises:
        InputError: the archive holds something other than plain files, or a path outside the folder.
    """
    with published(folder, f"unpacking {file.name}") as draft, file.open("rb") as archive:
        draft.mkdir()
        extract_tar(archive, draft, file.name)
    return folder


def _record_key(model: str, version: str) -> str:
    return f"{model}/{version}/model.json"


def _parsed(data: bytes, what: str) -> ModelRecord:
    value = parse_json(data, what)
    try:
        record = ModelRecord(str(value["sha256"]), int(value["size"]))
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{what} is not the record of a model") from error
    if not re.fullmatch(r"[0-9a-f]{64}", record.sha256):
        raise IntegrityError(f"{what} holds no SHA-256")
    return record


def _reader(file: Path) -> Reader:
    def read(start: int) -> Iterator[bytes]:
        with file.open("rb") as source:
            source.seek(start)
            while chunk := source.read(CHUNK):
                yield chunk

    return read

"""The distribution API of one repository: manifests, tags and whole blobs, one method per request.

It knows nothing of bundles; `_upload` sends large blobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from cloudedge.errors import CloudEdgeError, InputError, IntegrityError, NotFound, Rejected, Unavailable
from cloudedge.hub.core import (
    IMAGE_INDEX,
    IMAGE_MANIFEST,
    MANIFEST_LIMIT,
    Descriptor,
    Manifest,
    digest_of,
    parse_digest,
)
from cloudedge.hub.registry._session import BACKOFF
from cloudedge.io import Backoff, Patience, retry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloudedge.hub.registry._session import RegistrySession, Reply

__all__ = ["Repository"]

# Without docker's types, an old registry converts other tools' images, and their digest changes.
_ACCEPT = (
    f"{IMAGE_MANIFEST}, {IMAGE_INDEX}, "
    "application/vnd.docker.distribution.manifest.v2+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json"
)
_IDLE_LIMIT = 2
"""Consecutive breaks of a download without a single new byte before giving up."""
_MANIFEST_TRIES = 4
"""Tries to send a manifest to a registry that reports a wrong digest."""
_DELETED = (200, 202, 204)


@dataclass(frozen=True)
class Repository:
    """One repository of a registry."""

    session: RegistrySession
    path: str

    def scope(self, actions: str) -> str:
        """Return the token scope for ``pull``, ``pull,push`` or ``delete``."""
        return f"repository:{self.path}:{actions}"

    def _url(self, rest: str) -> str:
        return self.session.url(f"{self.path}/{rest}")

    def list_tags(self) -> list[str]:
        """List every tag; empty if the repository does not exist."""
        pages = self.session.pages(
            f"{self.path}/tags/list",
            "tags",
            what=f"listing the tags of {self.path}",
            scope=self.scope("pull"),
        )
        try:
            return list(pages)
        except NotFound:
            return []

    def head_manifest(self, reference: str) -> Descriptor | None:
        """Describe the manifest under a tag or digest, or return None."""
        reply = self._manifest_call("HEAD", reference)
        if reply.status == 404:  # noqa: PLR2004
            return None
        try:
            digest = parse_digest(reply.headers["Docker-Content-Digest"])
            size = int(reply.headers["Content-Length"])
        except (KeyError, ValueError, InputError):
            # Some registries omit the digest; then the bytes give it.
            body = self._manifest_call("GET", reference)
            digest, size = digest_of(body.body), len(body.body)
            if body.status == 404:  # noqa: PLR2004 - deleted meanwhile
                return None
        return Descriptor(reply.headers.get("Content-Type") or IMAGE_MANIFEST, digest, size)

    def get_manifest(self, reference: str) -> Manifest:
        """Read the manifest under a tag or digest; a digest is verified.

        Raises:
            NotFound: it does not exist.
            IntegrityError: the registry sent other bytes.
        """
        reply = self._manifest_call("GET", reference)
        where = f"{self.path} at {self.session.host}"
        if reply.status == 404:  # noqa: PLR2004
            raise NotFound(
                f"{where} has no manifest {reference}",
                hint="Push the bundle with `cloudedge hub push`.",
                digest=reference,
                hub=self.session.host,
            )
        if reference.startswith("sha256:") and digest_of(reply.body) != reference:
            raise IntegrityError(
                f"{where} answered manifest {reference} with other bytes: {digest_of(reply.body)}",
                hint="Push the bundle to another registry; this one, or a proxy before it, is broken.",
                digest=reference,
                hub=self.session.host,
            )
        return Manifest.parse(reply.body)

    def put_manifest(self, reference: str, manifest: Manifest) -> None:
        """Store a manifest under a tag or its digest.

        Raises:
            NotFound: a blob of the manifest is missing.
            IntegrityError: the registry received other bytes.
        """
        put = partial(
            self.session.call,
            "PUT",
            self._url(f"manifests/{reference}"),
            what=f"writing manifest {reference} of {self.path}",
            scope=self.scope("pull,push"),
            accept=(200, 201, 202),
            headers={"Content-Type": manifest.media_type},
            data=manifest.raw,
        )
        # docker-registry on a file system also reports damage when another process writes the same manifest at the same
        # moment: it rewrites its links in place and fails on one that is still empty.
        retry(
            put,
            attempts=_MANIFEST_TRIES,
            backoff=Backoff(0.5, 0.5),
            clock=self.session.clock,
            may_repeat=lambda error: isinstance(error, IntegrityError),
        )

    def delete_manifest(self, reference: str) -> bool:
        """Delete a manifest by digest, or only a tag where the registry can; returns True if it was there.

        Raises:
            Rejected: the registry does not allow it; for a tag also if it deletes by digest only.
        """
        try:
            reply = self.session.call(
                "DELETE",
                self._url(f"manifests/{reference}"),
                what=f"deleting {reference} from {self.path}",
                scope=self.scope("delete"),
                accept=(*_DELETED, 404),
            )
        except CloudEdgeError as error:
            status = error.facts.get("status")
            if status == 405:  # noqa: PLR2004
                raise Rejected(
                    error.message,
                    hint="Allow deletion: set `storage.delete.enabled: true` in docker-registry's configuration.",
                    **error.facts,
                ) from error
            if status == 400:  # noqa: PLR2004 - docker-registry 2 calls a tag a bad digest
                raise Rejected(error.message, hint=error.hint, **error.facts) from error
            raise
        return reply.status in _DELETED

    def _manifest_call(self, method: str, reference: str) -> Reply:
        return self.session.call(
            method,
            self._url(f"manifests/{reference}"),
            what=f"reading manifest {reference} of {self.path}",
            scope=self.scope("pull"),
            accept=(200, 404),
            headers={"Accept": _ACCEPT},
            limit=MANIFEST_LIMIT,
        )

    def has_blob(self, blob: Descriptor) -> bool:
        """Return True if the whole blob is stored."""
        reply = self.session.call(
            "HEAD",
            self._url(f"blobs/{blob.digest}"),
            what=f"looking for blob {blob.digest} in {self.path}",
            scope=self.scope("pull"),
            accept=(200, 404),
        )
        return reply.status == 200 and reply.headers.get("Content-Length") in (None, str(blob.size))  # noqa: PLR2004

    def read_blob(self, blob: Descriptor, start: int) -> Iterator[bytes]:
        """Stream a blob from an offset, resuming after a broken connection.

        Raises:
            NotFound: the blob does not exist.
            IntegrityError: the registry sent more than the blob's size, or from another offset.
            Unavailable: the connection kept breaking without a new byte.
        """
        at, patience = start, Patience(_IDLE_LIMIT + 1, BACKOFF, self.session.clock)
        while at < blob.size or at == start == 0:
            before = at
            try:
                for chunk in self._blob_from(blob, at):
                    at += len(chunk)
                    yield chunk
            except Unavailable:
                if at == start or not patience.wait(progressed=at > before):
                    raise
                continue
            if at < blob.size:
                raise self._damaged(blob, f"it ended after {at} bytes")
            return

    def _blob_from(self, blob: Descriptor, at: int) -> Iterator[bytes]:
        what = f"reading blob {blob.digest} of {self.path}"
        with self.session.stream(
            self._url(f"blobs/{blob.digest}"),
            what=what,
            scope=self.scope("pull"),
            accept=(200, 206),
            headers={"Range": f"bytes={at}-"} if at else {},
        ) as (reply, chunks):
            skip = at
            if reply.status == 206:  # noqa: PLR2004
                found = re.match(r"bytes (\d+)-", reply.headers.get("Content-Range", ""))
                if found is None or int(found[1]) != at:
                    raise self._damaged(blob, f"requested from byte {at}, it came as {found and found[0]!r}")
                skip = 0
            left = blob.size - at
            for chunk in chunks:
                wanted = chunk[skip:]
                skip -= len(chunk) - len(wanted)
                left -= len(wanted)
                if left < 0:
                    raise self._damaged(blob, f"more than the declared {blob.size} bytes")
                if wanted:
                    yield wanted

    def _damaged(self, blob: Descriptor, found: str) -> IntegrityError:
        return IntegrityError(
            f"{self.path} at {self.session.host}: blob {blob.digest} is damaged: {found}",
            hint="Push the bundle again from a hub where it verifies.",
            digest=blob.digest,
            hub=self.session.host,
        )

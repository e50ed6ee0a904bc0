"""The check of published blobs: fetched as a node would, before a rollout moves any node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import requests

from cloudedge.config import EdgeLeg
from cloudedge.edge_bie.client import Bie, File
from cloudedge.edge_bie.fleet._revision import Revision
from cloudedge.edge_bie.model import Blob, blob_config
from cloudedge.errors import IntegrityError, Unavailable
from cloudedge.hub import CHUNK
from cloudedge.io import digest_chunks

__all__ = ["check_objects"]

_TIMEOUT_S = (10.0, 60.0)


def check_objects(bie: Bie, leg: EdgeLeg, revisions: Sequence[Revision], live: Revision | None) -> None:
    """Fetch every blob of some revisions that the live one does not have, and compare length and digest.

    Raises:
        IntegrityError: A config is missing, or its URL leads to something else.
        Unavailable: The URL does not answer.
    """
    known = {blob.digest for blob in live.statement.every_blob} if live else set()
    fresh = {blob.digest: blob for each in revisions for blob in each.statement.every_blob if blob.digest not in known}
    with requests.Session() as session:
        for blob in fresh.values():
            config = bie.config(blob_config(leg.model, blob.digest))
            item = next((item for item in config.items.values() if isinstance(item, File)), None) if config else None
            if item is None:
                raise IntegrityError(f"no config leads nodes to blob {blob.digest}", hint="Publish it again.")
            _fetch(session, item.url, blob)


def _at_most(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield chunks up to the one that makes them too many."""
    for chunk in chunks:
        yield chunk
        size -= len(chunk)
        if size < 0:
            return


def _fetch(session: requests.Session, url: str, blob: Blob) -> None:
    try:
        with session.get(url, stream=True, timeout=_TIMEOUT_S) as answer:
            if answer.status_code != requests.codes.ok:
                raise IntegrityError(
                    f"{url} answers {answer.status_code}, and nodes fetch from there",
                    hint="Make the files readable for nodes, then try again.",
                    url=url,
                )
            found = digest_chunks(_at_most(answer.iter_content(CHUNK), blob.size))
    except requests.RequestException as error:
        raise Unavailable(f"{url} does not answer: {type(error).__name__}", url=url) from error
    if (found.size, f"sha256:{found.sha256}") != (blob.size, blob.digest):
        raise IntegrityError(
            f"{url} leads to something else than blob {blob.digest} of {blob.size} bytes",
            hint="Remove it there and publish again.",
            url=url,
        )

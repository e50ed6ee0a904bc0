"""`BosStore`: objects in a bucket of Baidu Object Storage.

It compensates for the SDK's habits: the SDK speaks HTTP by default, accepts a body that ends early as a whole one,
retries without jitter, writes signing keys to its debug log, and needs both ends of a range.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import IO, TYPE_CHECKING, Any, Final

from cloudedge.clock import SystemClock
from cloudedge.errors import (
    CloudEdgeError,
    ConfigError,
    Rejected,
    Unavailable,
)
from cloudedge.hub.core import CHUNK
from cloudedge.hub.objects._lease import TTL_S
from cloudedge.hub.objects._remote_store import RemoteStore
from cloudedge.hub.objects._store_calls import (
    HTTP_EXPLANATIONS,
    Opened,
    class_answer,
    given,
    http_answer,
    hush,
    listed,
    split_url,
    unfinished,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudedge.clock import Clock
    from cloudedge.config import HubConfig
    from cloudedge.hub.core import ObjectInfo
    from cloudedge.hub.objects._multipart import Part
    from cloudedge.hub.objects._store_calls import Answer, Unfinished

__all__ = ["BosSettings", "BosStore", "open_bos"]

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_TIMEOUT_S: Final = 60

_EXPLANATIONS: Final[Mapping[str, tuple[type[CloudEdgeError], str]]] = {
    **HTTP_EXPLANATIONS,
    "AccountOverdue": (Rejected, "Settle the account's bill."),
    "RequestExpired": (Rejected, "Set this machine's clock."),
    "OSError": (Unavailable, "Check the endpoint and the network, then run the command again."),
    "HTTPException": (Unavailable, "Run the command again; the connection broke."),
    "ValueError": (Unavailable, "Check that the endpoint is BOS and not a proxy; its answer is unreadable."),
    "BceError": (Unavailable, "Check the endpoint and the network, then run the command again."),
}


@dataclass(frozen=True)
class BosSettings:
    """Address and credentials of a BOS bucket."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    """For temporary keys only."""
    region: str = "bj"
    endpoint: str | None = None
    """The host, with ``http://`` in front if it has no TLS; None: the region's public one."""
    path_style: bool = False
    """``host/bucket`` instead of ``bucket.host``; IPv4 hosts always use it."""


class BosStore(RemoteStore):
    """An `ObjectStore` in a BOS bucket: ``bos://bucket/prefix``. Its lock protects tag moves."""

    def __init__(
        self, url: str, settings: BosSettings, *, clock: Clock | None = None, lock_ttl_s: float = TTL_S
    ) -> None:
        bucket, prefix = split_url(url, "bos")
        if not _BUCKET.fullmatch(bucket):
            raise ConfigError(f"not a BOS bucket: {bucket!r} (expected 3 to 63 lower-case letters, digits, -)")
        super().__init__(
            f"bos://{bucket}/{prefix}".rstrip("/"),
            prefix,
            _BosCalls(bucket, settings),
            clock=clock or SystemClock(),
            lock_ttl_s=lock_ttl_s,
        )


def open_bos(config: HubConfig) -> BosStore:
    """Open the bucket of a hub's configuration."""
    from cloudedge.config import reveal  # noqa: PLC0415 - slow to import

    access_key = config.access_key or os.environ.get("BCE_ACCESS_KEY_ID", "")
    secret_key = reveal(config.secret_key or "env:BCE_SECRET_ACCESS_KEY")
    settings = BosSettings(access_key, secret_key, region=config.region or "bj", endpoint=config.endpoint or None)
    return BosStore(config.url, settings)


class _BosCalls:
    """The calls of `Calls`, made with bce-python-sdk."""

    explanations = _EXPLANATIONS

    def __init__(self, bucket: str, settings: BosSettings) -> None:
        try:
            from baidubce import protocol  # noqa: PLC0415 - an extra
            from baidubce.auth.bce_credentials import BceCredentials  # noqa: PLC0415
            from baidubce.bce_client_configuration import BceClientConfiguration  # noqa: PLC0415
            from baidubce.exception import BceError  # noqa: PLC0415
            from baidubce.retry.retry_policy import NoRetryPolicy  # noqa: PLC0415
            from baidubce.services.bos.bos_client import BosClient  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                "bos:// hubs need bce-python-sdk", hint="Install it with `pip install 'cloudedge[bos]'`."
            ) from error
        hush("baidubce")
        endpoint = settings.endpoint or f"{settings.region}.bcebos.com"
        self.errors: tuple[type[Exception], ...] = (BceError, OSError, http.client.HTTPException)
        self._bucket = bucket
        self._client = BosClient(
            BceClientConfiguration(
                credentials=BceCredentials(settings.access_key, settings.secret_key),
                security_token=settings.session_token,
                endpoint=endpoint,
                protocol=protocol.HTTP if endpoint.startswith("http://") else protocol.HTTPS,
                connection_timeout_in_mills=_TIMEOUT_S * 1000,
                send_buf_size=CHUNK // 8,
                retry_policy=NoRetryPolicy(),
                path_style_enable=settings.path_style,
            )
        )

    def answer(self, error: Exception) -> Answer:
        """Read an error: a server's has a status, others wrap the failure below."""
        cause: Exception = getattr(error, "last_error", None) or error
        status: int | None = getattr(error, "status_code", None)
        if status is not None:
            return http_answer(_text(getattr(error, "code", None)), status, _text(cause))
        return class_answer(cause)

    def head(self, name: str) -> ObjectInfo:
        """Describe an object."""
        about = self._client.get_object_meta_data(self._bucket, name).metadata
        size, written = (
            given(about.content_length, "Content-Length"),
            given(about.last_modified, "Last-Modified"),
        )
        return listed(name, int(size), about.etag, modified=parsedate_to_datetime(written), date=about.date)

    def open(self, name: str, start: int) -> Opened | None:
        """Begin a download at an offset."""
        ends = None
        if start:
            size = self.head(name).size
            if start >= size:
                return None
            ends = (start, size - 1)
        found = self._client.get_object(self._bucket, name, range=ends)
        about = found.metadata
        if start:
            given(about.content_range, "Content-Range")
        return Opened(found.data, int(given(about.content_length, "Content-Length")), given(about.etag, "ETag"))

    def put(self, name: str, data: bytes, md5: str) -> None:
        """Write an object at once."""
        self._client.put_object(self._bucket, name, data, len(data), content_md5=md5)

    def page(self, prefix: str, token: str | None) -> tuple[list[ObjectInfo], str | None]:
        """List one page of objects."""
        found = self._client.list_objects(self._bucket, prefix=prefix, marker=token)
        objects = [
            listed(
                item.key,
                int(item.size),
                item.etag,
                modified=_parse_time(item.last_modified),
                date=found.metadata.date,
            )
            for item in found.contents or []
        ]
        return objects, (found.next_marker or objects[-1].key) if found.is_truncated else None

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._client.delete_object(self._bucket, name)

    def list_uploads(self, prefix: str) -> list[Unfinished]:
        """List the unfinished uploads of the objects under a prefix."""
        uploads: list[Unfinished] = []
        marker = None
        while True:
            found = self._client.list_multipart_uploads(self._bucket, prefix=prefix, key_marker=marker)
            uploads += [
                unfinished(u.key, str(u.upload_id), begun=_parse_time(u.initiated), date=found.metadata.date)
                for u in found.uploads or []
            ]
            if not found.is_truncated:
                return uploads
            marker = found.next_key_marker or uploads[-1].name

    def begin_upload(self, name: str) -> str:
        """Begin an upload in parts."""
        return str(given(self._client.initiate_multipart_upload(self._bucket, name).upload_id, "uploadId"))

    def list_parts(self, name: str, upload: str) -> dict[int, tuple[int, str]]:
        """Return size and ETag of the uploaded parts."""
        parts: dict[int, tuple[int, str]] = {}
        marker = None
        while True:
            found = self._client.list_parts(self._bucket, name, upload, part_number_marker=marker)
            parts |= {int(p.part_number): (int(p.size), p.etag.strip('"')) for p in found.parts or []}
            if not found.is_truncated:
                return parts
            marker = found.next_part_number_marker

    def send_part(self, name: str, upload: str, part: Part, body: IO[bytes]) -> str:
        """Send a part and return its ETag."""
        md5 = base64.b64encode(part.md5).decode()
        sent = self._client.upload_part(self._bucket, name, upload, part.number, part.size, body, part_md5=md5)
        return str(given(sent.metadata.etag, "ETag"))

    def complete_upload(self, name: str, upload: str, etags: Mapping[int, str]) -> None:
        """Complete an upload from its parts."""
        parts = [{"partNumber": number, "eTag": etag} for number, etag in etags.items()]
        self._client.complete_multipart_upload(self._bucket, name, upload, parts)

    def abort_upload(self, name: str, upload: str) -> None:
        """Drop an upload and its parts."""
        self._client.abort_multipart_upload(self._bucket, name, upload)


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")

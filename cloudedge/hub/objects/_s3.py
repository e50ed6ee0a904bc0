"""`S3Store`: objects in an S3 bucket, at Amazon or any compatible server.

It allows for differences between servers. Checksums go as Content-MD5, which all of them check. A trial write decides
whether conditional writes work, since many servers accept the headers and ignore them. The SDK's retries are off:
one place decides about retries for all backends.
"""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import IO, TYPE_CHECKING, Any, Final

from cloudedge.clock import SystemClock
from cloudedge.errors import (
    CloudEdgeError,
    ConfigError,
    Conflict,
    Rejected,
    StorageError,
    Unavailable,
)
from cloudedge.hub.core import ANY, AnyVersion
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
    md5_of,
    split_url,
    unfinished,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_s3 import S3Client

    from cloudedge.clock import Clock
    from cloudedge.config import HubConfig
    from cloudedge.hub.core import ObjectInfo
    from cloudedge.hub.objects._multipart import Part
    from cloudedge.hub.objects._store_calls import Answer, Unfinished

__all__ = ["S3Settings", "S3Store", "open_s3"]

_EXPLANATIONS: Final[Mapping[str, tuple[type[CloudEdgeError], str]]] = {
    **HTTP_EXPLANATIONS,
    "NotImplemented": (Rejected, "Use another server; this one lacks a call that cloudedge needs."),
    "RequestTimeTooSkewed": (Rejected, "Set this machine's clock."),
    "XMinioStorageFull": (StorageError, "Free space on the server's disks."),
    "301": (ConfigError, "Set the hub's region; the bucket is in another one."),
    "NoCredentialsError": (ConfigError, "Set the hub's access key and secret key, or AWS_PROFILE."),
    "CredentialRetrievalError": (ConfigError, "Check the source of the credentials."),
    "ParamValidationError": (ConfigError, "Check the hub's URL."),
    "HTTPClientError": (Unavailable, "Check the endpoint and the network, then run the command again."),
    "BotoCoreError": (Unavailable, "Check the endpoint and the network, then run the command again."),
}


@dataclass(frozen=True)
class S3Settings:
    """Address and credentials of an S3 bucket.

    Raises:
        ConfigError: one of the two keys is missing.
    """

    endpoint_url: str | None = None
    """``https://host:port`` of a compatible server; None: Amazon."""
    region: str | None = None
    """None: the credential chain's default, else ``us-east-1``."""
    access_key: str | None = None
    """None: the default chain of environment, ``~/.aws`` and the machine's role."""
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    """For temporary keys only."""
    path_style: bool = False
    """``host/bucket`` instead of ``bucket.host``; most self-hosted servers need it."""

    def __post_init__(self) -> None:
        if (self.access_key is None) != (self.secret_key is None):
            raise ConfigError("an S3 hub needs both an access key and a secret key, or neither")


class S3Store(RemoteStore):
    """An `ObjectStore` in an S3 bucket: ``s3://bucket/prefix``."""

    def __init__(
        self, url: str, settings: S3Settings, *, clock: Clock | None = None, lock_ttl_s: float = TTL_S
    ) -> None:
        bucket, prefix = split_url(url, "s3")
        self._s3 = _S3Calls(bucket, settings)
        super().__init__(
            f"s3://{bucket}/{prefix}".rstrip("/"),
            prefix,
            self._s3,
            clock=clock or SystemClock(),
            lock_ttl_s=lock_ttl_s,
        )

    @cached_property
    def compare_and_set(self) -> bool:
        """True if the server itself compares the version that `put` expects: tried once, with an object of our own.

        All writers must come to the same answer, so it must depend on the server alone. Hence the last step reads the
        object: a refusal may be due to an earlier try whose answer was lost.
        """
        key = f"locks/probe-{uuid.uuid4().hex}"
        try:
            super().put(key, b"1")
            before = self.head(key)
            if not before or self._accepts(key, None) or self._accepts(key, "0" * 32):
                return False
            self._accepts(key, before.version)
            after = self.head(key)
            return after is not None and after.version != before.version
        finally:
            self.delete(key)

    def prepare(self, *, public: bool) -> None:
        """Create the bucket unless it exists.

        Args:
            public: Let everyone read objects whose name they know; no one may list them.
        """
        self._caller.attempt("creating the bucket", self._s3.make_bucket)
        if public:
            self._caller.attempt("making the bucket public", self._s3.allow_reading)

    def put(self, key: str, data: bytes, *, expected: str | AnyVersion | None = ANY) -> None:
        """Write a small object at once; the server compares `expected` if it can, else a look before the write does.

        Raises:
            Conflict: its version is not `expected`.
        """
        if isinstance(expected, AnyVersion) or not self.compare_and_set:
            super().put(key, data, expected=expected)
        else:
            self._put_if(key, data, expected)

    def _put_if(self, key: str, data: bytes, expected: str | None) -> None:
        call = partial(self._s3.put_if, self._object_name(key), data, md5_of(data), expected)
        self._caller.attempt(f"writing {key}", call)

    def _accepts(self, key: str, expected: str | None) -> bool:
        try:
            self._put_if(key, b"2", expected)
        except (Conflict, Rejected):
            return False
        return True


def open_s3(config: HubConfig) -> S3Store:
    """Open the bucket of a hub's configuration."""
    from cloudedge.config import reveal  # noqa: PLC0415 - slow to import

    settings = S3Settings(
        endpoint_url=config.endpoint or None,
        region=config.region or None,
        access_key=config.access_key or None,
        secret_key=reveal(config.secret_key) if config.secret_key else None,
        # A self-hosted server seldom has a host name per bucket.
        path_style=bool(config.endpoint),
    )
    return S3Store(config.url, settings)


class _S3Calls:
    """The calls of `Calls`, made with boto3."""

    explanations = _EXPLANATIONS

    def __init__(self, bucket: str, settings: S3Settings) -> None:
        try:
            from boto3.session import Session  # noqa: PLC0415 - an extra
            from botocore.config import Config  # noqa: PLC0415
            from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError("s3:// hubs need boto3", hint="Install it with `pip install 'cloudedge[s3]'`.") from error
        hush("boto3", "botocore")
        self.errors: tuple[type[Exception], ...] = (BotoCoreError, ClientError)
        self._bucket = bucket
        try:
            self._client: S3Client = Session(
                aws_access_key_id=settings.access_key,
                aws_secret_access_key=settings.secret_key,
                aws_session_token=settings.session_token,
            ).client(
                "s3",
                endpoint_url=settings.endpoint_url,
                region_name=settings.region,
                config=Config(
                    connect_timeout=10,
                    read_timeout=60,
                    retries={"total_max_attempts": 1},
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                    s3={"addressing_style": "path" if settings.path_style else "auto"},
                    user_agent_extra="cloudedge",
                ),
            )
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"s3://{bucket}: {error}", hint="Check the hub's endpoint and region.") from error

    def answer(self, error: Exception) -> Answer:
        """Read an error: a `ClientError` is the server's, others are boto3's own."""
        response: dict[str, Any] | None = getattr(error, "response", None)
        if response is None:
            return class_answer(error)
        about = response.get("Error", {})
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return http_answer(about.get("Code", ""), status, about.get("Message", ""))

    def make_bucket(self) -> None:
        """Create the bucket unless it exists."""
        try:
            self._client.head_bucket(Bucket=self._bucket)
        except self._client.exceptions.ClientError as error:
            if "404" not in self.answer(error).names:
                raise
            try:
                self._client.create_bucket(Bucket=self._bucket)
            except self._client.exceptions.BucketAlreadyOwnedByYou:
                return  # another process created it meanwhile

    def allow_reading(self) -> None:
        """Let everyone read objects whose name they know."""
        statement = {"Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject"]}
        policy = {
            "Version": "2012-10-17",
            "Statement": [statement | {"Resource": [f"arn:aws:s3:::{self._bucket}/*"]}],
        }
        self._client.put_bucket_policy(Bucket=self._bucket, Policy=json.dumps(policy))

    def head(self, name: str) -> ObjectInfo:
        """Describe an object."""
        found = self._client.head_object(Bucket=self._bucket, Key=name)
        size, etag = found.get("ContentLength"), found.get("ETag")
        return listed(name, size, etag, modified=found.get("LastModified"), date=_date(found))

    def open(self, name: str, start: int) -> Opened | None:
        """Begin a download at an offset."""
        try:
            if start:
                found = self._client.get_object(Bucket=self._bucket, Key=name, Range=f"bytes={start}-")
            else:
                found = self._client.get_object(Bucket=self._bucket, Key=name)
        except self._client.exceptions.ClientError as error:
            if "416" in self.answer(error).names:
                return None
            raise
        if start:
            given(found.get("ContentRange"), "Content-Range")  # not the status: rclone answers 200
        size, etag = given(found.get("ContentLength"), "Content-Length"), given(found.get("ETag"), "ETag")
        return Opened(found["Body"], size, etag.strip('"'))

    def put(self, name: str, data: bytes, md5: str) -> None:
        """Write an object at once."""
        self._client.put_object(Bucket=self._bucket, Key=name, Body=data, ContentMD5=md5)

    def put_if(self, name: str, data: bytes, md5: str, expected: str | None) -> None:
        """Write an object if it has the expected version, or does not exist."""
        put = partial(self._client.put_object, Bucket=self._bucket, Key=name, Body=data, ContentMD5=md5)
        if expected is None:
            put(IfNoneMatch="*")
        else:
            put(IfMatch=f'"{expected}"')

    def page(self, prefix: str, token: str | None) -> tuple[list[ObjectInfo], str | None]:
        """List one page of objects."""
        page = partial(self._client.list_objects_v2, Bucket=self._bucket, Prefix=prefix)
        found = page(ContinuationToken=token) if token else page()
        date = _date(found)
        objects = [
            listed(item["Key"], item["Size"], item["ETag"], modified=item["LastModified"], date=date)
            for item in found.get("Contents", [])
        ]
        return objects, found.get("NextContinuationToken")

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._client.delete_object(Bucket=self._bucket, Key=name)

    def list_uploads(self, prefix: str) -> list[Unfinished]:
        """List the unfinished uploads of the objects under a prefix."""
        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=prefix)
        try:
            return [
                unfinished(u["Key"], u["UploadId"], begun=u["Initiated"], date=_date(page))
                for page in pages
                for u in page.get("Uploads", [])
            ]
        except self._client.exceptions.NoSuchUpload:  # rclone's answer when there are none
            return []

    def begin_upload(self, name: str) -> str:
        """Begin an upload in parts."""
        begun = self._client.create_multipart_upload(Bucket=self._bucket, Key=name)
        return given(begun.get("UploadId"), "UploadId")

    def list_parts(self, name: str, upload: str) -> dict[int, tuple[int, str]]:
        """Return size and ETag of the uploaded parts."""
        pages = self._client.get_paginator("list_parts").paginate(Bucket=self._bucket, Key=name, UploadId=upload)
        return {
            part["PartNumber"]: (part["Size"], part["ETag"].strip('"'))
            for page in pages
            for part in page.get("Parts", [])
        }

    def send_part(self, name: str, upload: str, part: Part, body: IO[bytes]) -> str:
        """Send a part and return its ETag."""
        sent = self._client.upload_part(
            Bucket=self._bucket,
            Key=name,
            UploadId=upload,
            PartNumber=part.number,
            Body=body,
            ContentMD5=base64.b64encode(part.md5).decode(),
        )
        return given(sent.get("ETag"), "ETag").strip('"')

    def complete_upload(self, name: str, upload: str, etags: Mapping[int, str]) -> None:
        """Complete an upload from its parts."""
        self._client.complete_multipart_upload(
            Bucket=self._bucket,
            Key=name,
            UploadId=upload,
            MultipartUpload={"Parts": [{"PartNumber": n, "ETag": f'"{etag}"'} for n, etag in etags.items()]},
        )

    def abort_upload(self, name: str, upload: str) -> None:
        """Drop an upload and its parts."""
        self._client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload)


def _date(found: Any) -> str | None:
    date: str | None = found["ResponseMetadata"]["HTTPHeaders"].get("date")
    return date

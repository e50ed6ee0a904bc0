"""Secrets for data sets, in exact bytes: a newline added by ``echo`` would end up in an address or a key."""

from __future__ import annotations

import re
from typing import Any

from cloudedge.errors import InputError

__all__ = ["file_system_secret", "source_secret"]

_IN_ADDRESS = "@:/"
_VOLUME = re.compile(r"[a-z0-9][-a-z0-9]{1,61}[a-z0-9]")
"""A valid name of a JuiceFS volume."""


def file_system_secret(
    name: str,
    *,
    volume: str,
    storage: str,
    bucket: str,
    meta: str,
    access_key: str = "",
    secret_key: str = "",
    format_options: str = "",
    envs: str = "",
    namespace: str = "",
) -> dict[str, Any]:
    """Return the secret a SampleSet's file system needs.

    Args:
        name: The secret's name.
        volume: The JuiceFS volume.
        storage: The kind of object store: bos, s3, minio, redis...
        bucket: The bucket's address.
        meta: The metadata engine: ``redis://user:password@host:6379/0``.
        access_key: The object store's access key.
        secret_key: The object store's secret key.
        format_options: More options for ``juicefs format``; newer CSI drivers read them.
        envs: Environment of the mount pod; newer CSI drivers read it.
        namespace: The secret's namespace.

    Raises:
        InputError: a value is missing or has white space at an end, or JuiceFS would refuse the volume's name.
    """
    needed = {"name": volume, "storage": storage, "bucket": bucket, "metaurl": meta}
    missing = [key for key, value in needed.items() if not value]
    if missing:
        raise InputError(
            f"secret {name!r} lacks {', '.join(missing)}", hint="Add them: the controller stalls without them."
        )
    if not _VOLUME.fullmatch(volume):
        rule = "Use 3 to 63 of a-z, 0-9 and '-', with '-' neither first nor last."
        raise InputError(f"{volume!r} cannot be a JuiceFS volume's name", hint=rule)
    more = {"access-key": access_key, "secret-key": secret_key, "format-options": format_options, "envs": envs}
    return _secret(name, needed | {key: value for key, value in more.items() if value}, namespace)


def source_secret(name: str, *, access_key: str = "", secret_key: str = "", namespace: str = "") -> dict[str, Any]:
    """Return the secret for a sync's source; both keys empty for public data.

    Raises:
        InputError: a key has white space at an end, or characters that would break the address it is pasted into.
    """
    for key, value in (("access-key", access_key), ("secret-key", secret_key)):
        if any(letter in value for letter in _IN_ADDRESS):
            raise InputError(
                f"{key} of secret {name!r} contains one of {_IN_ADDRESS}, and the controller pastes it into an address",
                hint="Percent-encode it, or request another key.",
            )
    return _secret(name, {"access-key": access_key, "secret-key": secret_key}, namespace)


def _secret(name: str, values: dict[str, str], namespace: str) -> dict[str, Any]:
    for key, value in values.items():
        if value != value.strip():
            # The value itself is secret: the message does not repeat it.
            raise InputError(
                f"{key} of secret {name!r} begins or ends with white space",
                hint="Remove the white space. `echo` adds a newline; `echo -n` does not.",
            )
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": values}

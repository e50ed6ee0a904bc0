"""Translation of BIE's error codes and HTTP statuses to `cloudedge.errors`, in one table."""

from __future__ import annotations

import json
from typing import Any, Final

from cloudedge.errors import (
    CloudEdgeError,
    ConfigError,
    Conflict,
    InputError,
    NotFound,
    Overloaded,
    Rejected,
    Unavailable,
)

__all__ = ["refusal"]

_MESSAGE_LIMIT: Final = 500
_ERROR_TABLE: Final[dict[str, tuple[type[CloudEdgeError], str]]] = {
    # BIE's own codes
    "ErrRequestAccessDenied": (Rejected, "Check the signer, its keys and the account's permissions."),
    "ErrInvalidToken": (Rejected, "Fetch a new install command; its token is valid for one hour."),
    "ErrResourceHasBeenUsed": (Conflict, "Find the app that still mounts it, or choose another name if it is taken."),
    "ErrAppNameConflict": (Conflict, "Choose another name; another app has this one."),
    "ErrAppReferencedByNode": (Conflict, "Move the node's label first; a node still runs the app."),
    "ErrConvertConflict": (Conflict, "Run the command again."),
    "ErrUpdateCas": (Conflict, "Run the command again."),
    "ErrResourceNotFound": (NotFound, ""),
    "ErrRequestMethodNotFound": (ConfigError, "Check url, prefix and version of this cloud in cloudedge.yaml."),
    "ErrRequestParamInvalid": (InputError, ""),
    "ErrVolumeNotFoundWhenMount": (InputError, "Add a volume of the mount's name."),
    "ErrVolumeType": (InputError, "Use one of the volume types config, secret, certificate, hostPath and emptyDir."),
    "ErrDataTooLarge": (InputError, "Keep configs below 4 MiB and secrets below 64 KiB."),
    "ErrTemplate": (InputError, ""),
    "nonBaetyl": (InputError, "Choose another name; BIE reserves names that contain 'baetyl'."),
    "ErrResourceInvisible": (Rejected, "Leave it alone; it belongs to BIE itself."),
    "ErrNodeNumMaxLimit": (Rejected, "Delete a node, or raise the account's limit of nodes."),
    "ErrLicenseExpired": (Rejected, "Renew the licence."),
    "ErrNodeNotReady": (Unavailable, "Wait until the node is complete."),
    "ErrDatabase": (Unavailable, "Run the command again later; its database failed."),
    "ErrK8S": (Unavailable, "Run the command again later; its cluster failed."),
    "ErrObjectOperationException": (Unavailable, "Run the command again later; its object store failed."),
    # Baidu's gateway
    "RequestExpired": (Rejected, "Set this machine's clock."),
    "SignatureDoesNotMatch": (Rejected, "Check the secret key, and that no proxy changes a signed header."),
    "InvalidAccessKeyId": (Rejected, "Check the access key."),
    "RequestThrottled": (Overloaded, "Run the command again later."),
    # HTTP statuses
    "400": (InputError, ""),
    "401": (Rejected, "Check the signer and its keys."),
    "403": (Rejected, "Check the account's permissions."),
    "404": (ConfigError, "Check url, prefix and version of this cloud in cloudedge.yaml."),
    "408": (Unavailable, "Run the command again."),
    "409": (Conflict, "Run the command again."),
    "413": (InputError, "Send less; the control plane limits the size."),
    "429": (Overloaded, "Run the command again later."),
    "3xx": (ConfigError, "Check the url of this cloud; it redirects elsewhere."),
    "4xx": (Rejected, ""),
    "5xx": (Unavailable, "Run the command again later; the control plane failed."),
}


def refusal(what: str, status: int, body: bytes, request_id: str) -> CloudEdgeError:
    """Return the error for an answer other than 200.

    Args:
        what: The attempted action: "writing config x".
        status: The HTTP status.
        body: The answer.
        request_id: The request's id in the control plane's log.
    """
    code, message = _code_and_message(body)
    kind, hint = next(
        (_ERROR_TABLE[name] for name in (code, str(status), f"{status // 100}xx") if name in _ERROR_TABLE),
        (Unavailable, ""),
    )
    return kind(
        f"{what}: {message or 'no message'} ({code or 'no code'}, HTTP {status}, request {request_id})",
        hint=hint,
        code=code,
        status=status,
        request_id=request_id,
    )


def _code_and_message(body: bytes) -> tuple[str, str]:
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return "", body[:_MESSAGE_LIMIT].decode(errors="replace").strip()
    if not isinstance(value, dict):
        return "", ""
    lines = str(value.get("message") or "").splitlines()
    # Two languages, one line each; the last one is English.
    return str(value.get("code") or ""), (lines[-1] if lines else "")[:_MESSAGE_LIMIT]

"""What BIE's refusals mean: one table from its codes and HTTP statuses to `cloudedge.errors`."""

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

_LONGEST_MESSAGE: Final = 500
_MEANING: Final[dict[str, tuple[type[CloudEdgeError], str]]] = {
    # BIE's own codes
    "ErrRequestAccessDenied": (Rejected, "Check the signer and its keys, and what the account may do."),
    "ErrInvalidToken": (Rejected, "Fetch a new install command: its token holds for one hour."),
    "ErrResourceHasBeenUsed": (Conflict, "Something still mounts it, or the name is taken: see which app does."),
    "ErrAppNameConflict": (Conflict, "Another app has that name."),
    "ErrAppReferencedByNode": (Conflict, "A node still runs it: move the node's label first."),
    "ErrConvertConflict": (Conflict, "Read it again and repeat the change."),
    "ErrUpdateCas": (Conflict, "Read it again and repeat the change."),
    "ErrResourceNotFound": (NotFound, ""),
    "ErrRequestMethodNotFound": (ConfigError, "Check url, prefix and version of this cloud in cloudedge.yaml."),
    "ErrRequestParamInvalid": (InputError, ""),
    "ErrVolumeNotFoundWhenMount": (InputError, "Every mount needs a volume of that name."),
    "ErrVolumeType": (InputError, "A volume is one of config, secret, certificate, hostPath, emptyDir."),
    "ErrDataTooLarge": (InputError, "Configs stay below 4 MiB, secrets below 64 KiB: keep it elsewhere."),
    "ErrTemplate": (InputError, ""),
    "nonBaetyl": (InputError, "Names that contain 'baetyl' are BIE's own."),
    "ErrResourceInvisible": (Rejected, "It belongs to BIE itself."),
    "ErrNodeNumMaxLimit": (Rejected, "The account's number of nodes is used up."),
    "ErrLicenseExpired": (Rejected, "Renew the licence."),
    "ErrNodeNotReady": (Unavailable, "Wait until the node was made whole."),
    "ErrDatabase": (Unavailable, "The control plane's database is in trouble."),
    "ErrK8S": (Unavailable, "The control plane's cluster is in trouble."),
    "ErrObjectOperationException": (Unavailable, "The control plane's object store is in trouble."),
    # Baidu's gateway
    "RequestExpired": (Rejected, "Set this machine's clock."),
    "SignatureDoesNotMatch": (Rejected, "Check the secret key; a proxy may also have changed a signed header."),
    "InvalidAccessKeyId": (Rejected, "Check the access key."),
    "RequestThrottled": (Overloaded, "Run the command again later."),
    # HTTP statuses
    "400": (InputError, ""),
    "401": (Rejected, "Check the signer and its keys."),
    "403": (Rejected, "Check what the account may do."),
    "404": (ConfigError, "Check url, prefix and version of this cloud in cloudedge.yaml."),
    "408": (Unavailable, "Run the command again."),
    "409": (Conflict, "Read it again and repeat the change."),
    "413": (InputError, "It is larger than the control plane takes."),
    "429": (Overloaded, "Run the command again later."),
    "3xx": (ConfigError, "Check the url of this cloud: it leads elsewhere."),
    "4xx": (Rejected, ""),
    "5xx": (Unavailable, "The control plane is in trouble; run the command again later."),
}


def refusal(what: str, status: int, body: bytes, request_id: str) -> CloudEdgeError:
    """Return the error that an answer other than 200 stands for.

    Args:
        what: The attempt in words: "writing config x".
        status: The HTTP status.
        body: The answer.
        request_id: What the control plane's log has it under.
    """
    code, message = _words(body)
    kind, hint = next(
        (_MEANING[name] for name in (code, str(status), f"{status // 100}xx") if name in _MEANING), (Unavailable, "")
    )
    return kind(
        f"{what}: {message or 'no message'} ({code or 'no code'}, HTTP {status}, request {request_id})",
        hint=hint,
        code=code,
        status=status,
        request_id=request_id,
    )


def _words(body: bytes) -> tuple[str, str]:
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return "", body[:_LONGEST_MESSAGE].decode(errors="replace").strip()
    if not isinstance(value, dict):
        return "", ""
    lines = str(value.get("message") or "").splitlines()
    # Two languages, one line each; the last is English.
    return str(value.get("code") or ""), (lines[-1] if lines else "")[:_LONGEST_MESSAGE]

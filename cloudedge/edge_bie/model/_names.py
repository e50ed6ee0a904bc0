"""Names in BIE: names and labels that tie its objects to a release, and BIE's rules for names."""

from __future__ import annotations

import re

from cloudedge.errors import InputError

__all__ = [
    "APP_LABEL",
    "NAME",
    "OWNER_LABEL",
    "PROBE",
    "REVISION_LABEL",
    "VERIFY",
    "app_name",
    "blob_config",
    "check_key",
    "check_name",
    "node_label",
    "script_config",
    "statement_config",
]

OWNER_LABEL = "cloudedge"
"""Label of every object of cloudedge, with the value ``owned``; objects without it are never changed or deleted."""
APP_LABEL = "cloudedge-app"
REVISION_LABEL = "cloudedge-revision"
"""Labels of apps and statement configs: the app, and its revision."""

VERIFY = "cloudedge-verify"
"""Name of the init container whose state reports the check of signature, digests and number."""
PROBE = "cloudedge-probe"
"""Name of the container whose state reports the recorded requests. On cloudedge's own nodes it is a container, probed
again and again; on stock nodes it is an init container that tests the server first."""

NAME = re.compile(r"[a-z0-9][-a-z0-9.]{0,61}[a-z0-9]")
"""BIE's rule for names of objects. The lab has its own copy, so that tests notice a mistake in this one."""
_STRICTER = {
    "app": (re.compile(r"[a-z][-a-z0-9]{0,53}[a-z0-9]"), "2 to 55 of a-z, 0-9 and '-', a letter first"),
    "service": (re.compile(r"[a-z0-9][-a-z0-9]{0,61}[a-z0-9]"), "2 to 63 of a-z, 0-9 and '-'"),
}
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_SHORT = 12


def check_name(name: str, *, what: str) -> str:
    """Return a name that BIE accepts for a config, secret, registry, app, service, volume or node.

    Raises:
        InputError: BIE does not accept it, or it would collide with BIE's own objects.
    """
    pattern, rule = _STRICTER.get(what, (NAME, "2 to 63 of a-z, 0-9, '-' and '.'"))
    if not pattern.fullmatch(name):
        raise InputError(f"{what} name {name!r} is not one BIE takes", hint=f"Use {rule}.")
    if what not in ("node", "service", "volume") and "baetyl" in name:
        raise InputError(f"{what} name {name!r} contains 'baetyl', which BIE keeps for its own")
    return name


def check_key(key: str) -> str:
    """Return a key that BIE accepts for an item of a config.

    Raises:
        InputError: BIE does not accept it.
    """
    if not _KEY.fullmatch(key) or key.startswith("_object_"):
        raise InputError(f"config key {key!r} is not one BIE takes", hint="Use letters, digits, '-', '.', '_'.")
    return key


def app_name(base: str, revision: str) -> str:
    """Return the name of the one app of a revision: ``paddle-serving-3f2a9c01d4``."""
    return check_name(f"{base}-{revision}", what="app")


def node_label(base: str) -> str:
    """Return the node label that points at a revision; its value is the revision."""
    return f"cloudedge-{base}"


def statement_config(base: str, revision: str) -> str:
    """Return the name of the config that holds a revision's signed statement."""
    return check_name(f"{base}-statement-{revision}", what="config")


def blob_config(model: str, digest: str) -> str:
    """Return the name of the config that refers to one blob of a bundle: ``paddle-yolov3-model-0f3c1d2e4b5a``."""
    return check_name(f"{model}-{digest.removeprefix('sha256:')[:_SHORT]}", what="config")


def script_config(script: str, digest: str) -> str:
    """Return the name of the config with the scripts that start the server."""
    return check_name(f"{script}-{digest.removeprefix('sha256:')[:_SHORT]}", what="config")

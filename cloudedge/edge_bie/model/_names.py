"""What things are called in BIE: names and labels that tie its objects to a release, and the rules it has for names."""

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
"""On every object that is ours, with the value ``owned``; what does not carry it is never changed or deleted."""
APP_LABEL = "cloudedge-app"
REVISION_LABEL = "cloudedge-revision"
"""On apps and on statement configs: whose revision, and which."""

VERIFY = "cloudedge-verify"
"""Among a node's init containers: whether signature, digests and number were in order."""
PROBE = "cloudedge-probe"
"""Whether the recorded requests were answered as they should be: among the containers of our own nodes, which ask again
and again; among the init containers of stock ones, where it is a container that tries the server first."""

NAME = re.compile(r"[a-z0-9][-a-z0-9.]{0,61}[a-z0-9]")
"""What BIE lets an object be called. The lab has this rule for itself, or no test would see this one wrong."""
_STRICTER = {
    "app": (re.compile(r"[a-z][-a-z0-9]{0,53}[a-z0-9]"), "2 to 55 of a-z, 0-9 and '-', a letter first"),
    "service": (re.compile(r"[a-z0-9][-a-z0-9]{0,61}[a-z0-9]"), "2 to 63 of a-z, 0-9 and '-'"),
}
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_SHORT = 12


def check_name(name: str, *, what: str) -> str:
    """Return a name that BIE takes for a config, secret, registry, app, service, volume or node.

    Raises:
        InputError: it does not, or it would collide with BIE's own objects.
    """
    pattern, rule = _STRICTER.get(what, (NAME, "2 to 63 of a-z, 0-9, '-' and '.'"))
    if not pattern.fullmatch(name):
        raise InputError(f"{what} name {name!r} is not one BIE takes", hint=f"Wanted: {rule}.")
    if what not in ("node", "service", "volume") and "baetyl" in name:
        raise InputError(f"{what} name {name!r} contains 'baetyl', which BIE keeps for its own")
    return name


def check_key(key: str) -> str:
    """Return a key that BIE takes for an item of a config.

    Raises:
        InputError: it does not.
    """
    if not _KEY.fullmatch(key) or key.startswith("_object_"):
        raise InputError(f"config key {key!r} is not one BIE takes", hint="Wanted: letters, digits, '-', '.', '_'.")
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
    """Return the name of the config that holds what starts the server."""
    return check_name(f"{script}-{digest.removeprefix('sha256:')[:_SHORT]}", what="config")

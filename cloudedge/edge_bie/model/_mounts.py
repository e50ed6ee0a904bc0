"""Configs and secrets to mount, parsed from the sync API and checked before anything relies on them.

BIE runs every answer through Go's text/template: ``{{.BAETYL_NODE_NAME}}`` becomes the node's name, and anything else
between such braces stops a stock node. Here it stops only its own app.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudedge.edge_bie.model._apps import read_name, read_text, read_version
from cloudedge.errors import InputError

__all__ = ["MountedConfig", "Object", "filled_in"]

_OBJECT = "_object_"
_KEY = re.compile(r"(?!\.{1,2}$)[-._a-zA-Z0-9]{1,253}")
_FIELD = re.compile(r"\{\{\s*\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


@dataclass(frozen=True)
class Object:
    """A file that a config refers to."""

    key: str
    url: str
    md5: str = ""
    sha256: str = ""
    unpack: str = ""
    token: str = ""


@dataclass(frozen=True)
class MountedConfig:
    """A config or secret: texts that become files, and files to download."""

    name: str
    version: str
    texts: Mapping[str, bytes]
    objects: tuple[Object, ...] = ()

    @classmethod
    def parse(cls, value: Any) -> MountedConfig:
        """Parse a config in the form that the edge gets.

        Raises:
            InputError: A part of it is invalid.
        """
        name, version, data = _parts(value, "config")
        texts, objects = {}, []
        for key, item in data.items():
            if key.startswith(_OBJECT):
                objects.append(_object(name, key.removeprefix(_OBJECT), item))
            else:
                texts[read_text(key, f"key of config {name}", _KEY)] = item.encode()
        return cls(name, version, texts, tuple(objects))

    @classmethod
    def parse_secret(cls, value: Any) -> MountedConfig:
        """Parse a secret: its values are base64.

        Raises:
            InputError: A part of it is invalid.
        """
        name, version, data = _parts(value, "secret")
        try:
            texts = {
                read_text(key, f"key of secret {name}", _KEY): base64.b64decode(item, validate=True)
                for key, item in data.items()
            }
        except (binascii.Error, ValueError):
            raise InputError(f"secret {name} holds a value that is not base64") from None
        return cls(name, version, texts)


def filled_in(value: Any, fields: Mapping[str, str]) -> Any:
    """Fill in the template fields of an answer with the node's own values, as stock nodes do.

    Raises:
        InputError: A field is unknown, or there are other braces.
    """
    if isinstance(value, str):
        if "{{" not in value:
            return value
        try:
            text = _FIELD.sub(lambda found: fields[found[1]], value)
        except KeyError as error:
            raise InputError(f"the template names {error.args[0]!r}, which this node does not know") from None
        if "{{" in text:
            raise InputError("a value holds '{{', which BIE takes for a template")
        return text
    if isinstance(value, dict):
        return {key: filled_in(item, fields) for key, item in value.items()}
    if isinstance(value, list):
        return [filled_in(item, fields) for item in value]
    return value


def _object(config: str, key: str, item: str) -> Object:
    try:
        value = json.loads(item)
        notes = value.get("metadata") or {}
        found = Object(
            read_text(key, f"key of config {config}", _KEY),
            str(value.get("url") or notes.get("url") or ""),
            str(value.get("md5") or "").lower(),
            str(value.get("sha256") or notes.get("sha256") or "").lower().removeprefix("sha256:"),
            str(value.get("unpack") or ""),
            str(value.get("token") or ""),
        )
    except (ValueError, AttributeError, RecursionError):
        raise InputError(f"config {config}: the reference {key!r} cannot be read") from None
    if not found.url.startswith(("http://", "https://")):
        raise InputError(f"config {config}: {key!r} has no http URL to download it from")
    return found


def _parts(value: Any, what: str) -> tuple[str, str, dict[str, str]]:
    if not isinstance(value, dict):
        raise InputError(f"a {what} is an object, not {type(value).__name__}")
    name, data = read_name(value.get("name"), what), value.get("data") or {}
    if not isinstance(data, dict) or not all(isinstance(item, str) for item in data.values()):
        raise InputError(f"{what} {name}: its data are not texts by key")
    return name, read_version(str(value.get("version") or ""), f"version of {what} {name}"), data

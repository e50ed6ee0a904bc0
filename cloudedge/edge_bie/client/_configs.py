"""Configs, secrets and registries as BIE stores them.

BIE shows a config in two forms: lists use the nodes' form (`from_internal`), single reads the console's (`from_json`).
Both become the same `Config`. Unknown keys are kept and written back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Config", "File", "Item", "Registry", "Secret", "Text"]

_OBJECT = "_object_"
_FILE = ("type", "source", "url", "md5", "sha256", "unpack")


@dataclass(frozen=True)
class Text:
    """A small file whose content is in the config itself."""

    value: str


@dataclass(frozen=True)
class File:
    """A file that nodes download."""

    url: str = ""
    md5: str = ""
    """Lower-case hex; the only digest that a stock node checks. An upper-case or wrong one is downloaded for ever."""
    unpack: str = ""
    """Empty, ``zip``, ``tar`` or ``tgz``."""
    sha256: str = ""
    """Hex; BIE stores it without reading it, cloudedge's nodes check it."""
    source: str = "http"
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
    """All other keys of the item, including a bucket's credentials: never shown."""

    def to_value(self) -> dict[str, str]:
        """Return the item's value in the API's form."""
        about = {"url": self.url, "md5": self.md5, "sha256": self.sha256, "unpack": self.unpack}
        return {"type": "object", "source": self.source, **{k: v for k, v in about.items() if v}, **self.extra}

    @classmethod
    def from_value(cls, value: Mapping[str, str]) -> File:
        """Read the API's form."""
        kept = {k: v for k, v in value.items() if k not in (*_FILE, "userID")}
        if value.get("type", "object") != "object":
            kept["type"] = value["type"]  # a function package, kept unchanged
        return cls(
            url=value.get("url", ""),
            md5=value.get("md5", ""),
            unpack=value.get("unpack", ""),
            sha256=value.get("sha256", ""),
            source=value.get("source", ""),
            extra=kept,
        )


Item = Text | File


@dataclass(frozen=True)
class Config:
    """A config: named content that apps mount. A new version redeploys every app that mounts it."""

    name: str
    items: Mapping[str, Item] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    version: str = ""
    """Set by the server; empty before the first write, and never sent."""
    namespace: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Unknown fields."""

    def to_json(self) -> dict[str, Any]:
        """Return the body of a create or an update."""
        data = [
            {
                "key": key,
                "value": item.to_value() if isinstance(item, File) else {"type": "kv", "value": item.value},
            }
            for key, item in sorted(self.items.items())
        ]
        return {
            **self.extra,
            "name": self.name,
            "labels": dict(self.labels),
            "description": self.description,
            "data": data,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Config:
        """Read a config in either of BIE's forms."""
        data = value.get("data")
        return cls(
            **_common(value),
            items=_internal(data) if isinstance(data, Mapping) else _view(data or ()),
            labels=dict(value.get("labels") or {}),
            extra=_rest(value, "data", "labels"),
        )


@dataclass(frozen=True)
class Secret:
    """Named confidential values for containers. BIE gives secrets no labels."""

    name: str
    data: Mapping[str, str] = field(default_factory=dict, repr=False)
    description: str = ""
    version: str = ""
    namespace: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the body of a create or an update."""
        return {**self.extra, "name": self.name, "description": self.description, "data": dict(self.data)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Secret:
        """Read a secret; lists have no data."""
        return cls(**_common(value), data=dict(value.get("data") or {}), extra=_rest(value, "data"))


@dataclass(frozen=True)
class Registry:
    """An image registry and its user. BIE never returns the password, and gives registries no labels."""

    name: str
    address: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    description: str = ""
    version: str = ""
    namespace: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the body of a create or an update."""
        about = {"address": self.address, "username": self.username, "password": self.password}
        return {**self.extra, "name": self.name, "description": self.description, **about}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Registry:
        """Read a registry."""
        return cls(
            **_common(value),
            address=value.get("address", ""),
            username=value.get("username", ""),
            extra=_rest(value, "address", "username", "password"),
        )


_SERVER = ("createTime", "updateTime", "system")
_COMMON = ("name", "description", "version", "namespace")


def _common(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.get(key) or "" for key in _COMMON}


def _rest(value: Mapping[str, Any], *known: str) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k not in (*_COMMON, *_SERVER, *known)}


def _view(data: Any) -> dict[str, Item]:
    items: dict[str, Item] = {}
    for entry in data:
        value = entry["value"]
        items[entry["key"]] = Text(value["value"]) if value.get("type") == "kv" else File.from_value(value)
    return items


def _internal(data: Mapping[str, str]) -> dict[str, Item]:
    items: dict[str, Item] = {}
    for key, text in data.items():
        if not key.startswith(_OBJECT):
            items[key] = Text(text)
            continue
        reference = json.loads(text)
        about = reference.pop("metadata", None) or {"type": "object", "source": "http", **reference}
        items[key.removeprefix(_OBJECT)] = File.from_value(about)
    return items

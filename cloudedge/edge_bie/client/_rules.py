"""What BIE takes without a word and nodes then choke on, refused here instead.

Each check names the object, the value and what happens otherwise. Nothing is sent that one of these refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cloudedge.edge_bie.client._apps import App
from cloudedge.edge_bie.client._configs import Config, File, Registry, Secret, Text
from cloudedge.edge_bie.client._nodes import Node
from cloudedge.edge_bie.model import check_key, check_name
from cloudedge.errors import InputError
from cloudedge.hub import canonical_json

__all__ = ["check_app", "check_config", "check_labels", "check_node", "check_registry", "check_secret", "matches"]

UNPACKED = ("", "zip", "tar", "tgz")
SELECTOR_LIMIT = 255
CONFIG_LIMIT = 4 << 20
SECRET_LIMIT = 64 << 10
_MD5 = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_WORKLOADS = ("deployment", "daemonset", "job")


def check_config(config: Config) -> Config:
    """Return a config that nodes can use.

    Raises:
        InputError: they could not.
    """
    what = f"config {config.name}"
    check_name(config.name, what="config")
    check_labels(config.labels, what)
    _strings({"description": config.description}, what)
    kinds = {type(item) for item in config.items.values()}
    if len(kinds) > 1:
        raise InputError(
            f"{what} holds texts and files; nodes mount the files and leave the texts out",
            hint="Make two configs, one for each kind.",
        )
    for key, item in config.items.items():
        check_key(key)
        if isinstance(item, Text):
            _strings({key: item.value}, what)
        else:
            _check_file(item, f"{what}, file {key}")
    _no_template(config.to_json(), what)
    _fits(config.to_json()["data"], CONFIG_LIMIT, what)
    return config


def _check_file(file: File, what: str) -> None:
    _strings({**file.to_value()}, what)
    if file.unpack not in UNPACKED:
        raise InputError(f"{what}: unpack {file.unpack!r} fails on every node", hint="Wanted: zip, tar, tgz, or none.")
    if file.md5 and not _MD5.fullmatch(file.md5):
        raise InputError(
            f"{what}: md5 {file.md5!r} is not 32 lower-case hex digits: nodes would download it again every ten seconds"
        )
    if file.sha256 and not _SHA256.fullmatch(file.sha256):
        raise InputError(f"{what}: sha256 {file.sha256!r} is not 64 lower-case hex digits")
    if file.source == "http" and not file.url.startswith(("http://", "https://")):
        raise InputError(f"{what}: nodes fetch it by HTTP, and its url is {file.url!r}")
    if "authorization=" in file.url or "X-Amz-Signature=" in file.url:
        raise InputError(
            f"{what}: its url is signed and will expire: nodes that come later get 403",
            hint="Use a stable URL: a readable bucket, or one behind its own access control.",
        )


def check_secret(secret: Secret) -> Secret:
    """Return a secret that BIE takes.

    Raises:
        InputError: it would not; values are never repeated.
    """
    what = f"secret {secret.name}"
    check_name(secret.name, what="secret")
    for key, value in secret.data.items():
        check_key(key)
        if not isinstance(value, str):
            raise InputError(f"{what}: the value of {key} is not a string")
    if not secret.data:
        raise InputError(f"{what} holds nothing; BIE refuses that")
    _fits(dict(secret.data), SECRET_LIMIT, what)
    return secret


def check_registry(registry: Registry) -> Registry:
    """Return a registry that BIE takes.

    Raises:
        InputError: address or user is missing.
    """
    check_name(registry.name, what="registry")
    if not registry.address or not registry.username:
        raise InputError(f"registry {registry.name} needs an address and a username")
    return registry


def check_app(app: App) -> App:
    """Return an app that nodes can run.

    Raises:
        InputError: they could not.
    """
    what = f"app {app.name}"
    check_name(app.name, what="app")
    check_labels(app.labels, what)
    if app.is_summary:
        raise InputError(f"{what} is a summary from a list: read it whole before writing it")
    if len(app.selector) > SELECTOR_LIMIT:
        raise InputError(
            f"{what}: its selector has {len(app.selector)} characters and BIE keeps {SELECTOR_LIMIT}",
            hint="Select by one label that the nodes carry.",
        )
    if app.workload not in _WORKLOADS:
        raise InputError(
            f"{what}: nodes run no {app.workload}", hint=f"Wanted: {', '.join(_WORKLOADS)}. BIE takes others silently."
        )
    if type(app.replica) is not int or app.replica < 1:
        raise InputError(f"{what}: replica {app.replica!r} runs nothing, again and again", hint="Wanted: 1 or more.")
    if app.host_ports and app.replica != 1:
        raise InputError(f"{what} takes host port {app.host_ports[0]}, so its replica must be 1, not {app.replica}")
    _check_services(app, what)
    _no_template(app.to_json(), what)
    return app


def _check_services(app: App, what: str) -> None:
    volumes = [volume.name for volume in app.volumes]
    for name in volumes:
        check_name(name, what="volume")
    if len(set(volumes)) != len(volumes):
        raise InputError(f"{what} has two volumes of one name")
    taken: set[tuple[int, str]] = set()
    for service in app.services:
        where = f"{what}, service {service.name}"
        check_name(service.name, what="service")
        if not service.image and app.mode == "kube" and app.type == "container":
            raise InputError(f"{where} has no image")
        _strings({**service.env, **service.limits}, where)
        _strings({str(i): word for i, word in enumerate((*service.command, *service.args))}, where)
        for mount in service.mounts:
            if mount.name not in volumes:
                raise InputError(f"{where} mounts {mount.name!r}, and the app has no such volume")
        for port in service.ports:
            if port.host is not None and (port.host, port.protocol) in taken:
                raise InputError(f"{where}: host port {port.host}/{port.protocol} is taken twice")
            taken |= {(port.host, port.protocol)} if port.host is not None else set()


def check_node(node: Node) -> Node:
    """Return a node that BIE takes.

    Raises:
        InputError: it would not.
    """
    check_name(node.name, what="node")
    check_labels(node.labels, f"node {node.name}")
    return node


def check_labels(labels: Mapping[str, str], what: str) -> None:
    """Refuse labels that Kubernetes would refuse on the edge, after BIE took them.

    Raises:
        InputError: one is such.
    """
    for key, value in labels.items():
        prefix, slash, name = key.rpartition("/")
        if not _LABEL_NAME.fullmatch(name) or (slash and not _LABEL_PREFIX.fullmatch(prefix)):
            raise InputError(f"{what}: label {key!r} is not one Kubernetes takes")
        if not isinstance(value, str) or (value and not _LABEL_NAME.fullmatch(value)):
            raise InputError(
                f"{what}: label {key}={value!r} is not one Kubernetes takes",
                hint="Wanted: up to 63 letters, digits, '-', '_', '.', written as a string.",
            )


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Tell whether labels match a Kubernetes label selector. An empty selector of an app matches nothing.

    Raises:
        InputError: it is no selector.
    """
    terms = [term.strip() for term in re.split(r",(?![^(]*\))", selector) if term.strip()]
    return bool(terms) and all(_term(term, labels) for term in terms)


_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)")
_PAIR = re.compile(r"([^=!\s]+)\s*(==|=|!=)\s*([^=!\s]*)")


def _term(term: str, labels: Mapping[str, str]) -> bool:
    if found := _SET.fullmatch(term):
        key, how, values = found.groups()
        among = labels.get(key) in {value.strip() for value in values.split(",")}
        return among if how == "in" else not among
    if found := _PAIR.fullmatch(term):
        key, how, value = found.groups()
        return (labels.get(key) == value) is (how != "!=")
    if re.fullmatch(r"!?\s*[-\w./]+", term):
        return (term.lstrip("! ") in labels) is not term.startswith("!")
    raise InputError(f"{term!r} is no label selector", hint="Such as: ring=canary,site in (a, b),!old")


def _strings(values: Mapping[str, Any], what: str) -> None:
    for key, value in values.items():
        if not isinstance(value, str):
            raise InputError(
                f"{what}: {key} is {value!r}, a {type(value).__name__}; BIE takes strings only", hint='Quote it: "..."'
            )


def _no_template(body: Any, what: str) -> None:
    for path, text in _texts(body, ""):
        if "{{" in text:
            raise InputError(
                f"{what}: {path} contains '{{{{', which stops every app of every node that gets it",
                hint="Nodes run all answers through a template engine. Write the braces apart, or encode the text.",
            )


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _texts(inner, f"{path}[{i}]")


def _fits(data: Any, limit: int, what: str) -> None:
    size = len(canonical_json(data))
    if size >= limit:
        raise InputError(f"{what} has {size} bytes, and BIE keeps less than {limit}")

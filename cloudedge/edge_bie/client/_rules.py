"""Validation of objects that BIE accepts silently but nodes cannot use.

Each check names the object, the value and the consequence. A refused object is never sent.
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
    """Return a config if nodes can use it.

    Raises:
        InputError: they cannot.
    """
    what = f"config {config.name}"
    check_name(config.name, what="config")
    check_labels(config.labels, what)
    _check_strings({"description": config.description}, what)
    kinds = {type(item) for item in config.items.values()}
    if len(kinds) > 1:
        raise InputError(
            f"{what} holds texts and files, and nodes mount only the files",
            hint="Split it into two configs, one for each kind.",
        )
    for key, item in config.items.items():
        check_key(key)
        if isinstance(item, Text):
            _check_strings({key: item.value}, what)
        else:
            _check_file(item, f"{what}, file {key}")
    _refuse_templates(config.to_json(), what)
    _check_size(config.to_json()["data"], CONFIG_LIMIT, what)
    return config


def _check_file(file: File, what: str) -> None:
    _check_strings({**file.to_value()}, what)
    if file.unpack not in UNPACKED:
        raise InputError(f"{what}: unpack {file.unpack!r} fails on every node", hint="Use zip, tar, tgz or none.")
    if file.md5 and not _MD5.fullmatch(file.md5):
        raise InputError(
            f"{what}: md5 {file.md5!r} is not 32 lower-case hex digits: nodes would download it again every ten seconds"
        )
    if file.sha256 and not _SHA256.fullmatch(file.sha256):
        raise InputError(f"{what}: sha256 {file.sha256!r} is not 64 lower-case hex digits")
    if file.source == "http" and not file.url.startswith(("http://", "https://")):
        raise InputError(f"{what}: nodes download by HTTP, and its url is {file.url!r}")
    if "authorization=" in file.url or "X-Amz-Signature=" in file.url:
        raise InputError(
            f"{what}: its url is signed and will expire; later nodes get 403",
            hint="Use a stable URL: a readable bucket, or one behind its own access control.",
        )


def check_secret(secret: Secret) -> Secret:
    """Return a secret if BIE accepts it.

    Raises:
        InputError: it does not; the message shows no values.
    """
    what = f"secret {secret.name}"
    check_name(secret.name, what="secret")
    for key, value in secret.data.items():
        check_key(key)
        if not isinstance(value, str):
            raise InputError(f"{what}: the value of {key} is not a string")
    if not secret.data:
        raise InputError(f"{what} is empty, which BIE refuses")
    _check_size(dict(secret.data), SECRET_LIMIT, what)
    return secret


def check_registry(registry: Registry) -> Registry:
    """Return a registry if BIE accepts it.

    Raises:
        InputError: address or user is missing.
    """
    check_name(registry.name, what="registry")
    if not registry.address or not registry.username:
        raise InputError(f"registry {registry.name} needs an address and a username")
    return registry


def check_app(app: App) -> App:
    """Return an app if nodes can run it.

    Raises:
        InputError: they cannot.
    """
    what = f"app {app.name}"
    check_name(app.name, what="app")
    check_labels(app.labels, what)
    if app.is_summary:
        raise InputError(f"{what} is a summary from a list and cannot be written")
    if len(app.selector) > SELECTOR_LIMIT:
        raise InputError(
            f"{what}: its selector has {len(app.selector)} characters, and BIE stores {SELECTOR_LIMIT}",
            hint="Select by one label of the nodes.",
        )
    if app.workload not in _WORKLOADS:
        raise InputError(
            f"{what}: nodes do not run the workload {app.workload}",
            hint=f"Use one of {', '.join(_WORKLOADS)}. BIE accepts others silently.",
        )
    if type(app.replica) is not int or app.replica < 1:
        raise InputError(f"{what}: replica {app.replica!r} runs nothing", hint="Use 1 or more.")
    if app.host_ports and app.replica != 1:
        raise InputError(f"{what} uses host port {app.host_ports[0]}, so its replica must be 1, not {app.replica}")
    _check_services(app, what)
    _refuse_templates(app.to_json(), what)
    return app


def _check_services(app: App, what: str) -> None:
    volumes = [volume.name for volume in app.volumes]
    for name in volumes:
        check_name(name, what="volume")
    if len(set(volumes)) != len(volumes):
        raise InputError(f"{what} has two volumes with one name")
    taken: set[tuple[int, str]] = set()
    for service in app.services:
        where = f"{what}, service {service.name}"
        check_name(service.name, what="service")
        if not service.image and app.mode == "kube" and app.type == "container":
            raise InputError(f"{where} has no image")
        _check_strings({**service.env, **service.limits}, where)
        _check_strings({str(i): word for i, word in enumerate((*service.command, *service.args))}, where)
        for mount in service.mounts:
            if mount.name not in volumes:
                raise InputError(f"{where} mounts {mount.name!r}, which is no volume of the app")
        for port in service.ports:
            if port.host is not None and (port.host, port.protocol) in taken:
                raise InputError(f"{where}: host port {port.host}/{port.protocol} is used twice")
            taken |= {(port.host, port.protocol)} if port.host is not None else set()


def check_node(node: Node) -> Node:
    """Return a node if BIE accepts it.

    Raises:
        InputError: it does not.
    """
    check_name(node.name, what="node")
    check_labels(node.labels, f"node {node.name}")
    return node


def check_labels(labels: Mapping[str, str], what: str) -> None:
    """Refuse labels that Kubernetes would refuse on the edge, after BIE accepted them.

    Raises:
        InputError: Kubernetes would refuse a label.
    """
    for key, value in labels.items():
        prefix, slash, name = key.rpartition("/")
        if not _LABEL_NAME.fullmatch(name) or (slash and not _LABEL_PREFIX.fullmatch(prefix)):
            raise InputError(f"{what}: label {key!r} is invalid in Kubernetes")
        if not isinstance(value, str) or (value and not _LABEL_NAME.fullmatch(value)):
            raise InputError(
                f"{what}: label {key}={value!r} is invalid in Kubernetes",
                hint="Use a string of up to 63 letters, digits, '-', '_' and '.'.",
            )


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Return True if labels match a Kubernetes label selector. An app's empty selector matches nothing.

    Raises:
        InputError: `selector` is invalid.
    """
    terms = [term.strip() for term in re.split(r",(?![^(]*\))", selector) if term.strip()]
    return bool(terms) and all(_matches_term(term, labels) for term in terms)


_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)")
_PAIR = re.compile(r"([^=!\s]+)\s*(==|=|!=)\s*([^=!\s]*)")


def _matches_term(term: str, labels: Mapping[str, str]) -> bool:
    if found := _SET.fullmatch(term):
        key, how, values = found.groups()
        among = labels.get(key) in {value.strip() for value in values.split(",")}
        return among if how == "in" else not among
    if found := _PAIR.fullmatch(term):
        key, how, value = found.groups()
        return (labels.get(key) == value) is (how != "!=")
    if re.fullmatch(r"!?\s*[-\w./]+", term):
        return (term.lstrip("! ") in labels) is not term.startswith("!")
    raise InputError(f"{term!r} is not a label selector", hint="Write it like `ring=canary,site in (a, b),!old`.")


def _check_strings(values: Mapping[str, Any], what: str) -> None:
    for key, value in values.items():
        if not isinstance(value, str):
            raise InputError(
                f"{what}: {key} is {value!r}, a {type(value).__name__}; BIE accepts only strings",
                hint='Quote the value: "...".',
            )


def _refuse_templates(body: Any, what: str) -> None:
    for path, text in _walk_texts(body, ""):
        if "{{" in text:
            raise InputError(
                f"{what}: {path} contains '{{{{', which stops every app of every node that gets it",
                hint="Separate the braces or encode the text: nodes run everything through a template engine.",
            )


def _walk_texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk_texts(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _walk_texts(inner, f"{path}[{i}]")


def _check_size(data: Any, limit: int, what: str) -> None:
    size = len(canonical_json(data))
    if size >= limit:
        raise InputError(f"{what} has {size} bytes, and BIE stores less than {limit}")

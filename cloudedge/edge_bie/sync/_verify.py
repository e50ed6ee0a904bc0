"""Verification of a desired state: download files and compare their digests, send probes and compare the answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import requests

from cloudedge.edge_bie.client import Bie, File, Node
from cloudedge.edge_bie.sync._desired import DesiredAccount
from cloudedge.edge_bie.sync._sync_documents import Probe
from cloudedge.hub import CHUNK
from cloudedge.io import digest_chunks, read_body, storage_errors

__all__ = ["Check", "verify"]

_TIMEOUT_S: Final = 60
_ANSWER_LIMIT: Final = 16 << 20
_OK: Final = 200


@dataclass(frozen=True)
class Check:
    """One check and its result."""

    what: str
    problem: str = ""
    """Empty: the check passed."""


def verify(desired: DesiredAccount, bie: Bie, *, files: bool = True) -> Iterator[Check]:
    """Check a desired state from this machine.

    Args:
        desired: Its files and probes.
        bie: The control plane, which knows the nodes' addresses.
        files: Download every file and compare it with its digests.
    """
    if files:
        for config in desired.configs.values():
            for key, item in config.items.items():
                if isinstance(item, File) and item.source == "http":
                    yield Check(f"file {config.name}/{key}", _check_file(item))
    for name, probes in desired.probes.items():
        selector = desired.apps[name].selector
        nodes = bie.nodes(selector=selector) if probes and selector else []
        if probes and not nodes:
            yield Check(f"app {name}", "no node matches it")
        for node in nodes:
            for number, (probe, folder) in enumerate(probes, 1):
                yield Check(f"probe {number} of {name} on {node.name}", _check_probe(probe, folder, node))


def _check_file(item: File) -> str:
    try:
        with requests.get(item.url, stream=True, timeout=_TIMEOUT_S) as response:
            if response.status_code != _OK:
                return f"{item.url} answers {response.status_code}, not {_OK}"
            found = digest_chunks(response.iter_content(CHUNK), md5=True)
    except requests.RequestException as error:
        return f"{item.url} did not answer: {type(error).__name__}"
    if item.md5 and found.md5 != item.md5:
        return f"its MD5 is {found.md5}, not {item.md5}: every node would download it for ever"
    if item.sha256 and found.sha256 != item.sha256:
        return f"its SHA-256 is {found.sha256}, not {item.sha256}"
    return ""


def _check_probe(probe: Probe, folder: Path, node: Node) -> str:
    address = _address(node)
    if "{address}" in probe.url and not address:
        return "the node reported no address"
    url = probe.url.replace("{address}", address)
    body = _with_file_contents(probe.body, folder)
    method = "GET" if body is None else "POST"
    try:
        with requests.request(method, url, json=body, timeout=probe.timeout_s, stream=True) as response:
            content = read_body(response, _ANSWER_LIMIT)
            status = response.status_code
    except requests.RequestException as error:
        return f"{url} did not answer: {type(error).__name__}"
    if status != _OK:
        return f"{url} answers {status}"
    if not probe.expect:
        return ""
    try:
        answer = json.loads(content)
    except ValueError:
        return f"{url} does not answer with JSON"
    return _mismatch(probe.expect, answer, "")


def _address(node: Node) -> str:
    hosts = node.report.hosts.values() if node.report is not None else ()
    return next((str(host.get(key)) for key in ("address", "clientIP") for host in hosts if host.get(key)), "")


def _with_file_contents(value: Any, folder: Path) -> Any:
    if isinstance(value, str) and value.startswith("@"):
        path = folder / value[1:]
        with storage_errors("reading what a probe sends", path):
            return base64.b64encode(path.read_bytes()).decode()
    if isinstance(value, Mapping):
        return {key: _with_file_contents(inner, folder) for key, inner in value.items()}
    return [_with_file_contents(inner, folder) for inner in value] if isinstance(value, list) else value


def _mismatch(expected: Any, found: Any, path: str) -> str:
    """Describe the first mismatch of an answer; additional fields do not matter."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        wrong = (_mismatch(inner, found.get(key), f"{path}.{key}" if path else key) for key, inner in expected.items())
        return next((text for text in wrong if text), "")
    return "" if expected == found else f"{path or 'the answer'} is {found!r}, not {expected!r}"

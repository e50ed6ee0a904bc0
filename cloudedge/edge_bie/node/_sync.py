"""BAETYL's sync protocol: a report goes up, a delta comes down, and the resources that it names are fetched.

The rules are pure functions; `Link` speaks them over HTTP. The desire is the report with the answer merged in (RFC
7386): a key that the answer omits stays as reported. Stock nodes keep their last desire instead, and go on trying a
revision that the cloud has withdrawn.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from cloudedge.edge_bie.model import AppRef
from cloudedge.errors import ConfigError, InputError, NotFound, Rejected, Unavailable
from cloudedge.io import read_body

__all__ = ["Desire", "Link", "asked_for", "merge_patch", "read_answer", "take_delta", "values_of"]

REPORT, DESIRE = "/v1/sync/report", "/v1/sync/desire"
_ANSWER_LIMIT = 64 << 20
_TIMEOUT = (10.0, 60.0)


@dataclass(frozen=True)
class Desire:
    """The apps and properties that the cloud desires of this node."""

    apps: tuple[AppRef, ...] = ()
    sysapps: tuple[AppRef, ...] = ()
    nodeprops: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the form that the node saves and the cloud compares."""
        return {
            "apps": [app.to_json() for app in self.apps],
            "sysapps": [app.to_json() for app in self.sysapps],
            **({} if self.nodeprops is None else {"nodeprops": dict(self.nodeprops)}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Desire:
        """Parse that form.

        Raises:
            InputError: The value is no desire.
        """
        lists = [value.get(key) or [] for key in ("apps", "sysapps")]
        props = value.get("nodeprops")
        if not all(isinstance(item, list) for item in lists) or not isinstance(props, (dict, type(None))):
            raise InputError("a desire's apps are no list, or its properties no object")
        apps, sysapps = (tuple(AppRef.parse(item) for item in items) for items in lists)
        return cls(apps, sysapps, props)


def merge_patch(value: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(value) if isinstance(value, Mapping) else {}
    for key, item in patch.items():
        if item is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), item)
    return merged


def take_delta(report: Mapping[str, Any], delta: Any) -> Desire | None:
    """Return the desire, from the report and the cloud's answer to it; None if the cloud changes nothing.

    Raises:
        InputError: The answer is no delta.
    """
    if delta is None:
        return None
    if not isinstance(delta, dict):
        raise InputError("the cloud answered a report with something that is no delta")
    reported = {key: report[key] for key in ("apps", "sysapps", "nodeprops") if key in report}
    return Desire.from_json(merge_patch(reported, delta))


def asked_for(kind: str, names: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the request for some resources of a kind, each by name and version."""
    return {"infos": [{"kind": kind, "name": name, "version": version} for name, version in names]}


def values_of(answer: Any) -> dict[tuple[str, str], Any]:
    """Return the received resources, by kind and name.

    Raises:
        InputError: It is no answer to such a request.
    """
    try:
        return {(str(item["kind"]), str(item["name"])): item["value"] for item in answer["values"]}
    except (KeyError, TypeError) as error:
        raise InputError("the cloud answered a request for resources with something else") from error


def read_answer(status: int, body: bytes, attempted: str) -> Any:
    """Return the JSON of an answer.

    Raises:
        NotFound: The cloud does not know this node, or the requested resource.
        Rejected: The cloud refused.
        Unavailable: It did not answer properly.
    """
    try:
        value = json.loads(body) if body else None
    except (ValueError, RecursionError):
        raise Unavailable(f"cannot {attempted}: the answer (status {status}) is not JSON") from None
    if status == requests.codes.ok:
        return value
    error = value if isinstance(value, dict) else {}
    text = f"cannot {attempted}: status {status} {error.get('code', '')} {error.get('message', '')}".strip()
    if status == requests.codes.not_found:
        raise NotFound(text, hint="Create this node in the cloud, under this name and namespace.")
    if status < requests.codes.server_error:
        raise Rejected(text)
    raise Unavailable(text)


class Link:
    """One node's connection to the cloud.

    Args:
        url: The sync port: ``http://...`` names the node in a header, ``https://...`` by the client's certificate.
        node: The node's name.
        namespace: Its namespace.
        certificate: The client's certificate and key, for https.
        authority: CA file for the cloud's certificate; the system's if left out.
        insecure: Accept any certificate, as stock nodes do.
    """

    def __init__(
        self,
        url: str,
        node: str,
        *,
        namespace: str = "baetyl-cloud",
        certificate: tuple[Path, Path] | None = None,
        authority: Path | None = None,
        insecure: bool = False,
    ) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"the cloud's address is http:// or https:// and a host, not {url!r}")
        self.tls: ssl.SSLContext | None = None
        """The TLS settings, for downloads too; None: the system's."""
        if authority is not None or insecure:
            self.tls = ssl.create_default_context()
            if authority is not None:
                self.tls.load_verify_locations(authority)
            if insecure:
                self.tls.check_hostname, self.tls.verify_mode = False, ssl.CERT_NONE
        self.identity: dict[str, str] = {}
        """The header that names this node if no certificate does."""
        self._session = requests.Session()
        self._session.trust_env = False  # the cloud may be local: a proxy for the internet would not reach it
        self._session.headers["source"] = "baetyl-core"
        if self.url.startswith("http://"):
            self.identity = {"common-name": f"{namespace}.{node}"}
            self._session.headers.update(self.identity)
        elif certificate is None:
            raise ConfigError("https needs the node's certificate and key")
        else:
            self._session.cert = (str(certificate[0]), str(certificate[1]))
            self._session.verify = False if insecure else str(authority) if authority else True

    def report(self, report: Mapping[str, Any]) -> Desire | None:
        """Send a report; return the current desire."""
        return take_delta(report, self._post(REPORT, "report", report))

    def fetch(self, kind: str, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Any]:
        """Fetch resources of a kind, each by name and version."""
        if not names:
            return {}
        return values_of(self._post(DESIRE, "desire", asked_for(kind, names)))

    def _post(self, path: str, kind: str, value: Mapping[str, Any]) -> Any:
        attempted = f"send a {kind} to {self.url}"
        try:
            with self._session.post(
                self.url + path, json=value, headers={"kind": kind}, timeout=_TIMEOUT, stream=True
            ) as answer:
                body = read_body(answer, _ANSWER_LIMIT + 1)
                status = answer.status_code
        except (requests.RequestException, OSError) as error:
            raise Unavailable(f"cannot {attempted}: {type(error).__name__}") from error
        if len(body) > _ANSWER_LIMIT:
            raise Unavailable(f"cannot {attempted}: the answer is over {_ANSWER_LIMIT} bytes")
        return read_answer(status, body, attempted)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

"""WebSocket connections that carry several streams, for port-forwarding and commands in pods."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import certifi
import websocket
from kubernetes.stream import ws_client

from cloudedge.errors import Unavailable
from cloudedge.kube.api._errors import Passing, Status, refusal

__all__ = ["BROKEN", "open_websocket"]

BROKEN = (websocket.WebSocketException, OSError)
"""The exceptions of a broken connection."""

_PROTOCOL = "v4.channel.k8s.io"


def open_websocket(configuration: Any, url: str, headers: Mapping[str, str], *, what: str, timeout_s: float) -> Any:
    """Open a connection with a time limit, which the official client's function lacks.

    Raises:
        CloudEdgeError: the server refuses it, or does not answer.
    """
    opened = websocket.WebSocket(sslopt=_tls(configuration), skip_utf8_validation=True)
    options: dict[str, Any] = {
        "header": [f"{key}: {value}" for key, value in headers.items()],
        "subprotocols": [_PROTOCOL],
        "timeout": timeout_s,
    }
    if configuration.proxy or configuration.proxy_headers:
        options = ws_client.websocket_proxycare(options, configuration, url, headers)
    try:
        opened.connect(url, **options)
    except websocket.WebSocketBadStatusException as error:
        found = refusal(what, Status.read(error.status_code, error.resp_body or b""))
        raise (found.error if isinstance(found, Passing) else found) from error
    except BROKEN as error:
        raise Unavailable(f"{what}: {type(error).__name__}: {error}") from error
    return opened


def _tls(configuration: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE, "check_hostname": False}
    if configuration.verify_ssl:
        options = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": configuration.ssl_ca_cert or certifi.where()}
        if configuration.assert_hostname is not None:
            options["check_hostname"] = configuration.assert_hostname
    for ours, theirs in (("cert_file", "certfile"), ("key_file", "keyfile"), ("tls_server_name", "server_hostname")):
        if getattr(configuration, ours, None):
            options[theirs] = getattr(configuration, ours)
    return options

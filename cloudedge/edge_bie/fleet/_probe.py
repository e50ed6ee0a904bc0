"""Probes from the control side, for nodes that do not probe themselves: stock BAETYL reports no inference probe.

A server that cannot be reached may be behind a firewall; its node is then judged by its reports. A server that can be
reached has to answer.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cloudedge.bundle import Probes, Signature
from cloudedge.edge_bie.fleet._node_verdict import Probed
from cloudedge.edge_bie.model import ask_ready, ask_recorded
from cloudedge.errors import InputError, Unavailable
from cloudedge.io import join_address

if TYPE_CHECKING:
    from cloudedge.edge_bie.client import Node

__all__ = ["HttpProbe"]

_CONNECT_S = 2.0
"""Time-out of a connection: many nodes are behind firewalls that drop packets, and each costs this."""
_ANSWER_S = 30.0
"""Time-out of an answer: a large model on a small machine is slow; one that hangs must not delay others for long."""


class HttpProbe:
    """Sends the bundle's recorded requests to a node's service.

    Args:
        service: The service's name.
        port: Its port on the node.
        probes: The bundle's probes; None: the bundle is not in the local hub.
        signature: The bundle's signature, for the names that clients use.
        connect_s: Time-out of a connection.
        answer_s: Time-out of one answer.
    """

    def __init__(
        self,
        service: str,
        port: int,
        probes: Probes | None,
        signature: Signature | None = None,
        *,
        connect_s: float = _CONNECT_S,
        answer_s: float = _ANSWER_S,
    ) -> None:
        self._service = service
        self._port = port
        self._probes = probes or Probes()
        self._signature = signature or Signature()
        self._lacking = "its recorded probes are not here: pull the bundle" if probes is None else "none is recorded"
        self._connect_s = connect_s
        self._answer_s = answer_s

    def __call__(self, node: Node) -> Probed:
        """Probe a node."""
        base, why = self._reach(node)
        if not base:
            return Probed("starting" if why else "unreachable", why)
        try:
            if not self._probes.requests:
                ask_ready(base, timeout_s=self._answer_s)
                return Probed("answers", self._lacking)
            ask_recorded(base, self._service, self._probes, self._signature, timeout_s=self._answer_s)
        except InputError as error:
            return Probed("failed", error.message)
        except Unavailable as error:
            return Probed("starting", error.message)
        return Probed("passed")

    def _reach(self, node: Node) -> tuple[str, str]:
        """Return the server's URL, or the address that refuses connections; neither: no address can be reached."""
        refused = ""
        for address in _addresses(node):
            where = join_address(address, self._port)
            try:
                socket.create_connection((address, self._port), self._connect_s).close()
            except ConnectionRefusedError:
                # The node is reachable: BAETYL reports Running when the process starts, and loading takes longer.
                refused = refused or f"nothing listens on {where} yet"
            except (OSError, ValueError):
                continue
            else:
                return f"http://{where}", ""
        return "", refused


def _addresses(node: Node) -> Iterator[str]:
    """Yield the addresses of a node: those that its hosts report, then those that the cloud saw."""
    hosts = list(node.report.hosts.values()) if node.report else []
    yield from dict.fromkeys(str(host[key]) for key in ("address", "clientIP") for host in hosts if host.get(key))

"""Asking a node's server from here, for nodes that do not do it themselves: stock BAETYL reports no inference probe.

Whether a server can be reached and whether it answers are two questions. Who cannot be connected to may be behind a
firewall, and is then judged by what it reports; who can, has to answer.
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
"""Many nodes are behind something that answers nothing, and each costs this."""
_ANSWER_S = 30.0
"""A large model on a small machine takes its time; one that hangs must not hold up the others for long."""


class HttpProbe:
    """Sends the bundle's recorded requests to a node's service.

    Args:
        service: The service's name.
        port: Its port on the node.
        probes: The bundle's; None: the bundle is not at hand.
        signature: The bundle's, for the names that clients use.
        connect_s: How long a connection may take.
        answer_s: How long one answer may take.
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
        """Ask."""
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
        """Return where the server is, or who refuses a connection; neither: nobody can be reached."""
        refused = ""
        for address in _addresses(node):
            where = join_address(address, self._port)
            try:
                socket.create_connection((address, self._port), self._connect_s).close()
            except ConnectionRefusedError:
                # Somebody is there: BAETYL says Running when the process starts, and loading takes longer than that.
                refused = refused or f"nobody listens on {where} yet"
            except (OSError, ValueError):
                continue
            else:
                return f"http://{where}", ""
        return "", refused


def _addresses(node: Node) -> Iterator[str]:
    """Yield where a node may be reached: what its hosts call themselves, then where the cloud saw them come from."""
    hosts = list(node.report.hosts.values()) if node.report else []
    yield from dict.fromkeys(str(host[key]) for key in ("address", "clientIP") for host in hosts if host.get(key))

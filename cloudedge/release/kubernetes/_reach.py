"""The way to pods: through the API server, or by their addresses where cloudedge runs inside the cluster.

A forward is a port of this machine that leads to a pod by its name; each connection is opened separately, so a pod that
is deleted and comes back under its name is reached again. Forwards live as long as this process.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import ExitStack

from cloudedge.config import PodsConfig, TargetConfig
from cloudedge.kube import Cluster

__all__ = ["Reach", "is_direct"]


def is_direct(config: TargetConfig) -> bool:
    """Tell whether cloudedge reaches pods by their addresses."""
    access = (config.pods or PodsConfig()).access
    if access == "auto":
        return not config.kubeconfig and "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ
    return access == "direct"


class Reach:
    """Addresses of pods' ports.

    Args:
        cluster: The cluster of the pods.
        direct: Use the pods' own addresses; else go through the API server.
    """

    def __init__(self, cluster: Cluster, *, direct: bool) -> None:
        self.cluster = cluster
        self._direct = direct
        self._lock = threading.Lock()
        self._forwards: dict[tuple[str, int], tuple[ExitStack, int]] = {}
        atexit.register(self.close)

    def address(self, pod: str, port: int, *, ip: str = "") -> str:
        """Return the address to connect to for a pod's port, ``host:port``.

        Args:
            pod: Its name.
            port: Its port.
            ip: Its address, or that of a Service that leads only to it.
        """
        if self._direct and ip:
            return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        with self._lock:
            if (pod, port) not in self._forwards:
                stack = ExitStack()
                local = stack.enter_context(self.cluster.port_forward(pod, port))
                self._forwards[pod, port] = stack, local
            return f"127.0.0.1:{self._forwards[pod, port][1]}"

    def drop(self, pod: str) -> None:
        """Close the forwards to a pod that is gone for good."""
        with self._lock:
            gone = [self._forwards.pop(key)[0] for key in [*self._forwards] if key[0] == pod]
        for stack in gone:
            stack.close()

    def close(self) -> None:
        """Close everything."""
        atexit.unregister(self.close)
        with self._lock:
            forwards, self._forwards = self._forwards, {}
        for stack, _ in forwards.values():
            stack.close()
        self.cluster.close()

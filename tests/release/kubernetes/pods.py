"""Serving pods whose container is this process: real followers and admin APIs behind a real API server.

Pods are objects that no scheduler touches, with loopback addresses at which replicas listen here.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from itertools import count

from cloudedge.bundle import Bundle
from cloudedge.errors import NotFound
from cloudedge.hub import LocalHub
from cloudedge.kube import Kind
from cloudedge.release.kubernetes._names import SERVING_ADMIN
from cloudedge.serving import AdminServer, Follower, Runtime, Server, ServerConfig

_NUMBERS = count()


class Pod:
    """A pod that follows a document; what it reads as its file is what it was given when it was made."""

    def __init__(self, cluster, site, folder, name, *, labels, document):
        self.cluster, self.site, self.folder, self.name = cluster, site, folder / name, name
        process = os.getpid()  # pods of tests that run side by side have different addresses, as pods have
        self.ip = f"127.{process >> 8 & 255}.{process & 255}.{next(_NUMBERS) % 200 + 20}"
        self.hub = LocalHub(self.folder / "hub")
        self._stack, self.only = ExitStack(), None
        self.folder.mkdir(parents=True)
        (self.folder / "state.json").write_text(document)
        spec = {"schedulerName": "nobody", "containers": [{"name": "serving", "image": "none/serving:1"}]}
        meta = {"name": self.name, "labels": labels}
        cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        self.condition(Ready="False")

    def condition(self, **found):
        conditions = [{"type": name, "status": status} for name, status in {"PodScheduled": "True", **found}.items()]
        status = {"phase": "Running", "podIP": self.ip, "podIPs": [{"ip": self.ip}], "conditions": conditions}
        self.cluster.patch(Kind.POD, self.name, {"status": status}, subresource="status")

    def start(self):
        self.runtime = self._stack.enter_context(Runtime(hub=self.hub))
        self.follower = self._stack.enter_context(
            Follower(self.runtime, self.folder / "state.json", kept=self.folder / "kept.json", fetch=self._fetch)
        )
        self.server = self._stack.enter_context(Server(self.runtime, ServerConfig(host=self.ip, port=0)))
        admin = AdminServer(
            self.server, host=self.ip, port=SERVING_ADMIN, token=self.site.token, follower=self.follower
        )
        self._stack.enter_context(admin)
        self.condition(Ready="True")
        return self

    def _fetch(self, ref, tables):
        if self.only is not None and ref not in self.only:
            raise NotFound(f"no {ref} in the hub")
        Bundle.pull(ref, LocalHub(), hub=self.hub, tables=tables)

    def end(self):
        self.cluster.delete(Kind.POD, self.name, wait_s=60)
        self._stack.close()

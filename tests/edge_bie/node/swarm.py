"""Thousands of nodes in one process: everything a node does up to the point where it would start a server.

The protocol, the decisions, the checks of statements and blobs and the reports are the agent's own; files, processes
and probes are played. What a node has is forgotten when the process ends.

    with Swarm("http://127.0.0.1:9005", ["n1", "n2"], key=Path("release.pub"), interval_s=1.0) as swarm:
        ...
        swarm.live()["n1"]["paddle-serving"]      # the revision it runs
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from cloudedge.clock import SystemClock, rfc3339
from cloudedge.edge_bie.model import AppRef, DesiredApp, Statement, slot_of
from cloudedge.edge_bie.node._install import (
    checked_statement,
    objects_by_digest,
    read_apps,
    read_configs,
)
from cloudedge.edge_bie.node._node_plan import plan
from cloudedge.edge_bie.node._report import Trouble, app_stats, make_report, trouble_of
from cloudedge.edge_bie.node._runtime import ObservedService
from cloudedge.edge_bie.node._sync import DESIRE, REPORT, asked_for, read_answer, take_delta, values_of
from cloudedge.edge_bie.node._units import NodeState, ServiceRun, Slot, Unit
from cloudedge.errors import CloudEdgeError, InputError, Unavailable
from cloudedge.hub import digest_of
from tests.edge_bie.node.swarm_http import Http

__all__ = ["Swarm", "SwarmNode"]

_MACHINE: dict[str, Any] = {
    "hostname": "simulated",
    "address": "127.0.0.1",
    "arch": "amd64",
    "os": "linux",
    "role": "master",
}
_FIGURES: dict[str, Any] = {
    "ready": True,
    "diskPressure": False,
    "memoryPressure": False,
    "pidPressure": False,
    "usage": {"cpu": "0.1", "memory": "1073741824", "disk": "1073741824"},
    "capacity": {"cpu": "4", "memory": "8589934592", "disk": "68719476736"},
    "percent": {"cpu": "0.025", "memory": "0.125", "disk": "0.0156"},
    "netio": {},
}
_START_S = 30.0
_CANCEL_S = 0.5

Fails = Callable[[str, Statement], str]
"""Given a node's name and a statement, returns why that node's probes fail, or nothing."""


@dataclass
class SwarmNode:
    """One simulated node."""

    name: str
    state: NodeState = field(default_factory=NodeState)
    blobs: set[str] = field(default_factory=set)
    troubles: dict[AppRef, Trouble] = field(default_factory=dict)
    away: bool = False
    """Whether it is without power: it reports nothing and does nothing."""
    reports: int = 0
    fetched: int = 0
    known: dict[AppRef, DesiredApp] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """Return what it would report now."""
        live = {slot.live.ref: slot.live for slot in self.state.slots.values() if slot.live is not None}
        running = {"serving": ObservedService("Running")}
        stats = [
            app_stats(ref, machine=self.name, unit=live[ref], observed=running, probe="")
            if ref in live
            else app_stats(ref, machine=self.name, trouble=self.troubles.get(ref, Trouble("waiting", "Pending")))
            for ref in dict.fromkeys((*self.state.desire.apps, *live))
        ]
        state = replace(self.state, fetched=self.fetched)
        node = {**_MACHINE, "hostname": self.name}
        return make_report(state, stats=stats, machine=self.name, node=node, nodestats=_FIGURES, version="simulated")


class Swarm:
    """Many simulated nodes, in a thread of their own.

    Args:
        cloud: The sync port.
        names: The nodes, which the cloud knows.
        namespace: Theirs.
        key: Public key of whoever may say what runs; None: anybody may.
        interval_s: From one report to the next of a node; up to a tenth more, by chance.
        fails: Which nodes' probes fail for which statements.
        connections: To one server, at most.
        seed: Of chance.
    """

    def __init__(
        self,
        cloud: str,
        names: Sequence[str],
        *,
        namespace: str = "baetyl-cloud",
        key: Path | None = None,
        interval_s: float = 20.0,
        fails: Fails = lambda *_: "",
        connections: int = 64,
        seed: int = 0,
    ) -> None:
        self.nodes = {name: SwarmNode(name) for name in names}
        self.http = Http(connections)
        self._cloud = cloud.rstrip("/")
        self._namespace = namespace
        self._key = key
        self._interval_s = interval_s
        self._fails = fails
        self._rng = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="swarm", daemon=True)
        self.mistakes: list[BaseException] = []
        """What no node should ever raise."""

    def __enter__(self) -> Swarm:  # noqa: PYI034 - typing.Self is newer than Python 3.10
        self._thread.start()
        self._started.wait(_START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def live(self) -> dict[str, dict[str, str]]:
        """Return the live revision of every app of every node."""
        return {
            name: {slot: held.live.revision for slot, held in node.state.slots.items() if held.live is not None}
            for name, node in self.nodes.items()
        }

    def cut_power(self, name: str) -> None:
        """Let a node go away; it keeps what it has."""
        self.nodes[name].away = True

    def give_power(self, name: str) -> None:
        """Let a node return."""
        self.nodes[name].away = False

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._all())
        finally:
            self._loop.close()

    async def _all(self) -> None:
        self._stop = asyncio.Event()
        self._started.set()
        tasks = [asyncio.ensure_future(self._live(node)) for node in self.nodes.values()]
        await self._stop.wait()
        left = set(tasks)
        while left:  # once is not enough: before Python 3.12 wait_for forgets a cancellation that meets its answer
            for task in left:
                task.cancel()
            left = (await asyncio.wait(left, timeout=_CANCEL_S))[1]
        self.http.close()
        await asyncio.sleep(0)

    async def _live(self, node: SwarmNode) -> None:
        await asyncio.sleep(self._rng.random() * self._interval_s)
        while True:
            again = False
            if not node.away:
                try:
                    again = await self._cycle(node)
                except Unavailable:
                    pass  # the cloud is away; everything goes on as it was
                except CloudEdgeError as error:
                    self.mistakes.append(error)
                except Exception as error:  # noqa: BLE001 - kept for whoever runs the swarm
                    self.mistakes.append(error)
            # What changed is told soon, though never at once: a failing node must not become a storm.
            pause = self._interval_s * (1 + self._rng.random() / 10)
            await asyncio.sleep(pause / 4 if again else pause)

    async def _cycle(self, node: SwarmNode) -> bool:
        """Report and follow once; returns whether anything changed."""
        report = node.report()
        desire = take_delta(report, await self._post(node, REPORT, "report", report))
        node.reports += 1
        if desire is None or node.away:
            return False
        node.state = replace(node.state, desire=desire)
        node.troubles = {ref: trouble for ref, trouble in node.troubles.items() if ref in desire.apps}
        live = {slot.live.ref for slot in node.state.slots.values() if slot.live is not None}
        if live == set(desire.apps) or (live <= set(desire.apps) and set(desire.apps) - live <= set(node.troubles)):
            return False
        return await self._follow(node, desire.apps)

    async def _follow(self, node: SwarmNode, refs: tuple[AppRef, ...]) -> bool:
        new = [ref for ref in refs if ref not in node.known]
        apps, bad = read_apps(new, await self._fetch(node, "application", [(r.name, r.version) for r in new]), {})
        node.known = {ref: app for ref, app in {**node.known, **apps}.items() if ref in refs}
        for ref, error in bad.items():
            node.troubles[ref] = trouble_of(error, "waiting")
        decided = plan([node.known[ref] for ref in refs if ref in node.known], node.state.slots)
        if not bad:
            for name in decided.remove:
                node.state = node.state.with_slot(name, node.state.slots[name].emptied())
        for ref, cause in decided.skip.items():
            node.troubles[ref] = Trouble("waiting", "Conflict", cause)
        for app in decided.install:
            if not (app.ref in node.troubles and node.troubles[app.ref].cause):
                await self._install(node, app)
        return True

    async def _install(self, node: SwarmNode, app: DesiredApp) -> None:
        name = slot_of(app)
        try:
            unit, statement = await self._prepare(node, app)
        except CloudEdgeError as error:
            node.troubles[app.ref] = trouble_of(error, "verifying")
            return
        slot = node.state.slots.get(name, Slot()).trying(unit)
        why = self._fails(node.name, statement)
        if why:
            node.state = node.state.with_slot(name, replace(slot, candidate=None))
            node.troubles[app.ref] = trouble_of(InputError(why), "starting")
            return
        settled = slot.settled()
        node.state = node.state.with_slot(name, settled)
        node.blobs &= {digest for held in node.state.units for digest in held.blobs}
        node.troubles.pop(app.ref, None)

    async def _prepare(self, node: SwarmNode, app: DesiredApp) -> tuple[Unit, Statement]:
        pins = list({volume.source: (volume.source, volume.version) for volume in app.configs}.values())
        configs = read_configs(app.configs, await self._fetch(node, "configuration", pins), {})
        statement = checked_statement(app, configs, node.state.slots.get(slot_of(app), Slot()), self._key)
        if statement is None:
            raise InputError(f"{app.ref.name} comes without a statement")
        objects, blobs = objects_by_digest(configs), statement.every_blob
        for blob in blobs:
            if blob.digest in node.blobs:
                continue
            if blob.digest not in objects:
                raise InputError(f"no config says where blob {blob.digest} is")
            status, data = await self.http.call("GET", objects[blob.digest].url, headers=self._identity(node))
            node.fetched += len(data)
            if status != 200:
                raise Unavailable(f"blob {blob.digest}: the server says {status}")
            if digest_of(data) != blob.digest:
                raise InputError(f"blob {blob.digest} is not what the statement says")
            node.blobs.add(blob.digest)
        unit = Unit(
            app.ref,
            slot_of(app),
            rfc3339(SystemClock().now()),
            (ServiceRun("serving", (), {}),),
            sequence=statement.sequence,
            revision=statement.revision,
            bundle=statement.bundle,
            blobs=tuple(blob.digest for blob in blobs),
        )
        return unit, statement

    def _identity(self, node: SwarmNode) -> dict[str, str]:
        return {"common-name": f"{self._namespace}.{node.name}", "source": "baetyl-core"}

    async def _post(self, node: SwarmNode, path: str, kind: str, value: Mapping[str, Any]) -> Any:
        headers = {**self._identity(node), "kind": kind, "Content-Type": "application/json"}
        status, body = await self.http.call(
            "POST", self._cloud + path, headers=headers, body=json.dumps(value).encode()
        )
        return read_answer(status, body, f"send a {kind}")

    async def _fetch(self, node: SwarmNode, kind: str, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Any]:
        if not names:
            return {}
        return values_of(await self._post(node, DESIRE, "desire", asked_for(kind, names)))

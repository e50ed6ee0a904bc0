"""Probes of a unit on its private port, before the front sends it any request.

A bundle without probes, and an app that cloudedge did not publish, have to accept a connection and stay up.
"""

from __future__ import annotations

from collections.abc import Callable

from cloudedge.bundle import Bundle
from cloudedge.clock import Clock, SystemClock
from cloudedge.edge_bie.model import ask_ready, ask_recorded
from cloudedge.edge_bie.node._runtime import listens
from cloudedge.edge_bie.node._units import Unit
from cloudedge.errors import Unavailable

__all__ = ["ask_probes", "await_answers"]

_POLL_S = 0.1
_ANSWER_S = 120.0
_STEADY_S = 2.0
"""Time that a unit without ports has to stay up."""


def await_answers(
    unit: Unit, bundle: Bundle | None, *, failing: Callable[[], str], within_s: float, clock: Clock | None = None
) -> None:
    """Wait until a unit answers its probes.

    Args:
        unit: The unit to probe.
        bundle: The bundle with the probes; None for an app that cloudedge did not publish.
        failing: Returns the reason why the unit cannot succeed, or an empty string.
        within_s: Longest time to get ready.
        clock: Source of time.

    Raises:
        InputError: It answers a probe wrongly.
        Unavailable: It ended, or does not answer in time.
    """
    time = clock or SystemClock()
    end, begun = time.monotonic() + within_s, time.monotonic()
    ports = [lead.private for run in unit.runs for lead in run.leads]
    last = "it does not listen"
    while True:
        if why := failing():
            raise Unavailable(f"{unit.ref.name} does not stay up: {why}")
        try:
            if ports and all(listens(port) for port in ports):
                ask_probes(unit, bundle)
                return
            if not ports and time.monotonic() - begun > _STEADY_S:
                return
        except Unavailable as error:
            last = error.message
        if time.monotonic() > end:
            raise Unavailable(f"{unit.ref.name} does not answer within {within_s:g} s: {last}")
        time.sleep(_POLL_S)


def ask_probes(unit: Unit, bundle: Bundle | None) -> None:
    """Send a unit its probes once.

    Raises:
        InputError: It answers a probe wrongly.
        Unavailable: It does not answer.
    """
    ports = [lead.private for run in unit.runs for lead in run.leads]
    if bundle is None or not ports:
        return
    base = f"http://127.0.0.1:{ports[0]}"
    if bundle.probes.requests:
        ask_recorded(base, unit.probe, bundle.probes, bundle.signature, timeout_s=_ANSWER_S)
    else:
        ask_ready(base, timeout_s=_ANSWER_S)
